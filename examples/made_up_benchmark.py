"""A folder tree of a benchmark's shape, filled with made-up pictures: to try a grid before the images are there.

    python examples/made_up_benchmark.py office-home made-up/office-home
    unida grid --paper unida-officehome --root made-up/office-home --out runs/try --rows ovanet dcc --seeds 0 \
        --pairs Ar:Cl --set backbone=test_resnet.r160_in1k weights=none steps=4

Every domain and class has its folder, and DomainNet its official lists. Each class has a colour and each domain a
brightness, so that there is a little to learn; results mean nothing.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from unida.data.benchmarks import load_benchmark

SIZE = 64


def make(name: str, root: Path, per_class: int) -> int:
    """Returns the number of images."""
    benchmark, random, count = load_benchmark(name), np.random.default_rng(0), 0
    colours = random.uniform(60, 195, (len(benchmark.classes), 3))
    for shift, domain in enumerate(benchmark.domains):
        listed: dict[str, list[str]] = {"train": [], "test": []}
        for label, class_name in enumerate(benchmark.classes):
            folder = root / domain.name / class_name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(per_class):
                noise = random.normal(colours[label] + 15 * shift, 20, (SIZE, SIZE, 3))
                path = folder / f"{class_name}_{number}.png"
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path)
                listed["test" if number == 0 else "train"].append(f"{path.relative_to(root)} {label}")
                count += 1
        if benchmark.lists is not None and benchmark.lists.expected:
            for part, lines in listed.items():
                name_of_list = benchmark.lists.file.format(domain=domain.name, part=part)
                (root / name_of_list).write_text("\n".join(lines) + "\n")
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark", help="a name from `unida data list`")
    parser.add_argument("root", type=Path, help="a new folder")
    parser.add_argument("--per-class", type=int, default=3, help="images of each class in each domain")
    options = parser.parse_args()
    print(f"{make(options.benchmark, options.root, options.per_class)} images in {options.root}")
