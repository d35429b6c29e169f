"""A tiny finished run with SPA, and a grid made of copies of it, for tests of reports."""

import csv
import json
import shutil
from pathlib import Path

import yaml

from unida.cli import main
from unida.data.glyphs import write_glyphs

HOSTILE = "<script>boom()<"  # a class
HOSTILE_FILE = "<img src=x onerror=boom()>&{{ 7*7 }}.png"


def make_run(folder: Path) -> Path:
    """Two classes of the source are in the target, which has two of its own. One has a name that is hostile to HTML."""
    drawn = write_glyphs(folder / "drawn", shared=2, source_private=1, target_private=2, per_class=4, size=40)
    shared = drawn.shared[0]
    for side in (drawn.source, drawn.target):
        (side / shared).rename(side / HOSTILE)
    first = sorted((drawn.target / HOSTILE).iterdir())[0]
    first.rename(first.with_name(HOSTILE_FILE))
    (drawn.target / drawn.target_private[0] / "broken.png").write_bytes(b"no picture")
    out = folder / "run"
    options = {"backbone": "test_resnet", "weights": "none", "train": "tail", "regime": "published", "engine": "torch"}
    options |= {"image-size": "40", "crop": "32", "steps": "3", "batch-size": "4", "eval-every": "2", "log-every": "1"}
    options |= {"source": drawn.source, "target": drawn.target, "out": out, "cache": folder / "cache"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    main(["adapt", *words, "--target-labels", "--accelerator", "cpu", "--spa", "--spa.vocabulary", "8"])
    return out


def add_groups(run: Path) -> list[str]:
    """groups.csv: all unknown images but the first are one group. The paths in it."""
    with (run / "predictions.csv").open(newline="") as file:
        paths = [row["path"] for row in csv.DictReader(file) if not row["skipped"]]
    with (run / "groups.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "group", "sureness"))
        writer.writerows((path, 3 if number else -1, 0.5) for number, path in enumerate(paths))
    return paths[1:]


def make_grid(folder: Path, run: Path) -> Path:
    """Two rows of two seeds, each a copy of the run with another HOS; a third row has failed."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    data = {name: config["data"][name] for name in ("source", "target")}
    spec = {"seeds": [0, 1], "folders": {"mine": {**data, "target_labels": True}}}
    spec["rows"] = {name: {"method": "ovanet", "spa": True} for name in ("base", "better", "<b>lost</b>")}
    folder.mkdir()
    (folder / "grid.yaml").write_text(yaml.safe_dump(spec))
    for number, row in enumerate(("base", "better")):
        for seed in (0, 1):
            copy = folder / "runs" / f"mine-{row}-{seed}"
            shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoint", "report.html", "events*"))
            content = json.loads((copy / "metrics.json").read_text())
            content["last_step"]["hos"] = 0.5 + 0.1 * number + 0.02 * seed * (1 + number)
            (copy / "metrics.json").write_text(json.dumps(content))
    return folder
