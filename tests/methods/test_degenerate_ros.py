"""ROS on data that is odd: every run ends with finite losses and an answer for each image."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import unida
from unida.data.glyphs import draw

Counts = dict[str, int]  # images of each class

CASES: dict[str, tuple[Counts, Counts, dict[str, Any]]] = {
    "two source classes": ({"star": 4, "house": 4}, {"star": 4, "key": 4}, {}),
    "one image in a class": ({"star": 4, "house": 4, "heart": 1}, {"star": 4, "key": 4}, {}),
    "a target of five images": ({"star": 4, "house": 4}, {"star": 3, "key": 2}, {}),
    "a target of one image": ({"star": 4, "house": 4}, {"star": 1}, {}),
    "all unknown": ({"star": 4, "house": 4}, {"key": 4, "tree": 4}, {}),
    "none unknown": ({"star": 4, "house": 4}, {"star": 4, "house": 4}, {}),
    "batches of one class": ({"star": 12, "house": 1}, {"star": 4, "key": 4}, {"batch_size": 2}),
    "a step for each stage": ({"star": 4, "house": 4}, {"star": 4, "key": 4}, {"steps": 2}),
    "no step for the first stage": ({"star": 4, "house": 4}, {"star": 4, "key": 4}, {"steps": 1}),
}


def write(folder: Path, domain: str, counts: Counts) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw(name, domain, seed=0, size=40, number=number).save(folder / name / f"{number}.png")
    return folder


WITH_ALL = ("two source classes", "a target of five images", "batches of one class")  # where BatchNorm may suffer


@pytest.mark.parametrize(
    ("case", "train"), [*((case, "head") for case in CASES), *((case, "all") for case in WITH_ALL)]
)
def test_it_trains_to_the_end(case: str, train: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, target, changes = CASES[case]
    run = unida.adapt(
        write(tmp_path / "source", "flat", source),
        write(tmp_path / "target", "photo", target),
        tmp_path / "run",
        cache=tmp_path / "cache",
        method="ros",
        backbone="test_resnet",
        weights="none",
        train=train,
        accelerator="cpu",
        min_images_per_class=1,
        **{"image_size": 40, "crop": 32, "batch_size": 6, "steps": 6, "log_every": 1, "bottleneck": 8, **changes},
    )
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == changes.get("steps", 6)
    for line in lines:
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float))
    assert lines[-1]["phase"] == "adaptation" and "labelled" in lines[-1]
    assert ("no target image stands out" in caplog.text) == ("rotation" not in lines[-1])
    answers = list(run.predict(tmp_path / "target"))
    assert len(answers) == sum(target.values())
    assert all(0 <= answer.unknown_score <= 1 for answer in answers)
