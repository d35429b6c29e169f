"""DANCE and the re-implementation of Zhu & Li on odd data, through the whole loop: they train, and no number is NaN."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unida.cli import main
from unida.data.glyphs import draw

METHODS = ("dance", "zhu")
KNOWN, OTHERS = ("star", "house", "heart"), ("key", "tree", "arrow")


def write(folder: Path, counts: dict[str, int], domain: str) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw(name, domain, seed=0, size=40, number=number).save(folder / name / f"{number}.png")
    return folder


CASES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "two classes": ({"star": 6, "house": 6}, {"star": 5, "house": 5, "key": 5}),
    "one image in a class": ({"star": 1, "house": 7, "heart": 4}, {"star": 5, "house": 5, "key": 1}),
    "five target images": (dict.fromkeys(KNOWN, 4), {"star": 2, "house": 1, "key": 2}),
    "one target image": (dict.fromkeys(KNOWN, 4), {"star": 1}),
    "all unknown": (dict.fromkeys(KNOWN, 4), dict.fromkeys(OTHERS, 4)),
    "none unknown": (dict.fromkeys(KNOWN, 4), dict.fromkeys(KNOWN, 4)),
    "one class in the target": (dict.fromkeys(KNOWN, 4), {"house": 9}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    place, written = tmp_path_factory.mktemp("odd"), set[str]()

    def folders_of(case: str) -> tuple[Path, Path]:
        source, target = place / case / "source", place / case / "target"
        if case not in written:
            write(source, CASES[case][0], "flat")
            write(target, CASES[case][1], "photo")
            written.add(case)
        return source, target

    return folders_of


def adapt(source: Path, target: Path, out: Path, **options: Any) -> None:
    given = {"backbone": "test_resnet", "weights": "none", "image_size": 40, "crop": 32, "batch_size": 8, "steps": 4}
    given |= {"source": source, "target": target, "out": out, "cache": out.with_name("cache"), "log_every": 1}
    given |= {"accelerator": "cpu", "min_images_per_class": 1, **options}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    main(["adapt", *words, "--target-labels"])


@pytest.mark.parametrize(("case", "train"), [*((case, "all") for case in CASES), ("five target images", "head")])
@pytest.mark.parametrize("method", METHODS)
def test_odd_data_trains_without_a_nan(
    method: str, case: str, train: str, folders: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    source, target = folders(case)
    adapt(source, target, tmp_path / "run", method=method, train=train)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 4 and all(math.isfinite(x) for line in lines for x in line.values() if isinstance(x, float))
    state = load_file(tmp_path / "run" / "checkpoint" / "resume.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())
    rows = state["method/memory.rows"]
    assert torch.equal(rows.norm(dim=1).round(decimals=4), torch.ones(len(rows)))  # 32 views: every image was seen
    with (tmp_path / "run" / "predictions.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == sum(CASES[case][1].values())
    assert all(0 <= float(answer["unknown_score"]) <= 1 for answer in answers)


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_one_class_train(method: str, folders: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    """A batch of two images: half of them show one class."""
    source, target = folders("two classes")
    adapt(source, target, tmp_path / "run", method=method, train="all", batch_size=2, steps=8, neighbours=0)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 8 and all(math.isfinite(line["total"]) for line in lines)
