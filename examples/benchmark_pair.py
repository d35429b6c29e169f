"""A pair of a benchmark's domains, in Python: the same as `unida adapt --benchmark office31 --root DIR --pair …`.

    python examples/benchmark_pair.py [OUT] [STEPS] [DIR]

DIR holds Office-31. Without it, drawn pictures stand in for the photos, in folders of the same names.
"""

import sys
from pathlib import Path

import unida
from unida.data.benchmarks import load_benchmark
from unida.data.glyphs import CLASSES, draw

if {"-h", "--help"} & set(sys.argv):
    sys.exit(__doc__)
OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/benchmark-pair")
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 100
SETTING = "unida"  # `unida data list` names the others


def draw_stand_in(root: Path) -> Path:
    sets = load_benchmark("office31").label_sets(SETTING)
    for domain, style, names in (("amazon", "flat", sets.source_classes), ("dslr", "photo", sets.target_classes)):
        for name in names:
            (root / domain / name).mkdir(parents=True, exist_ok=True)
            shape = CLASSES[load_benchmark("office31").classes.index(name)]
            for number in range(2):
                draw(shape, style, seed=0, size=96, number=number).save(root / domain / name / f"{number}.png")
    return root


if __name__ == "__main__":
    has_photos = len(sys.argv) > 3
    root = Path(sys.argv[3]) if has_photos else draw_stand_in(OUT / "office31")
    size = {} if has_photos else {"backbone": "tf_efficientnet_lite0", "image_size": 96, "crop": 80}
    names = {"benchmark": "office31", "root": root, "pair": "amazon:dslr", "setting": SETTING}
    run = unida.adapt(**names, **size, method="ovanet", out=OUT / "run", steps=STEPS, resume=True)
    for name in ("hos", "known", "unknown", "auroc"):
        print(name, run.metrics[name])  # the benchmark has labels: they are read for this, never for training
