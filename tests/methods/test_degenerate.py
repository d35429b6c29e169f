"""Every method on very little data, through the whole loop: it trains with finite numbers, or refuses in one line."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import unida
from unida.data.glyphs import draw
from unida.methods import METHODS

Counts = dict[str, int]  # images of each class

SIZES: dict[str, dict[str, Any]] = {  # so that a run takes a second
    "usfda": {"bottleneck": 8, "spliced_images": 64},
    "ros": {"bottleneck": 8},
    "sta": {"bottleneck": 8},
    "inheritune": {"bottleneck": 8},
}
ROWS: dict[str, dict[str, Any]] = {name: {"method": name, **SIZES.get(name, {})} for name in METHODS} | {
    "iuan, its gate open": {"method": "iuan", "accuracy_gate": 0.0},
    "cmu, as released": {"method": "cmu", "as_released": True},
}
CASES: dict[str, tuple[Counts, Counts, dict[str, Any]]] = {
    "two classes, one of one image; five images, all unknown": (
        {"star": 1, "house": 6},
        {"key": 3, "tree": 2},
        {"train": "head"},
    ),
    "batches of one class; none unknown": (
        {"star": 6, "house": 6, "heart": 1},
        {"star": 5, "house": 4},
        {"train": "all", "batch_size": 2, "steps": 8},
    ),
    "one target image": ({"star": 4, "house": 4}, {"star": 1}, {"train": "head", "regime": "published", "views": 1}),
}
TWO = {"star": 4, "house": 4}
OF_ONE_METHOD: dict[str, tuple[str, Counts, Counts, dict[str, Any]]] = {
    "ros: a step for each stage": ("ros", TWO, {"star": 4, "key": 4}, {"train": "head", "steps": 2}),
    "ros: no step for the first stage": ("ros", TWO, {"star": 4, "key": 4}, {"train": "head", "steps": 1}),
    "usfda: one image in every class": ("usfda", {"star": 1, "house": 1}, {"star": 4, "key": 4}, {"train": "head"}),
    "usfda: many negative classes": (
        "usfda",
        TWO,
        {"star": 4, "key": 4},
        {"train": "head", "instance_weights": "mass", "negative_classes": 150},
    ),
    "usfda: one step": ("usfda", TWO, {"star": 4, "key": 4}, {"train": "head", "steps": 1}),
    "inheritune: one image in every class, a step for each phase": (
        "inheritune",
        {"star": 1, "house": 1},
        {"star": 4, "key": 4},
        {"train": "head", "steps": 2},
    ),
    "dance: one class in the target": ("dance", TWO, {"house": 9}, {"train": "all"}),
    "zhu: one class in the target": ("zhu", TWO, {"house": 9}, {"train": "all"}),
}


def write(folder: Path, domain: str, counts: Counts) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw(name, domain, seed=0, size=32, number=number).save(folder / name / f"{number}.png")
    return folder


def adapt(place: Path, row: str, source: Counts, target: Counts, **changes: Any) -> unida.Run:
    tiny = {"backbone": "test_resnet", "weights": "none", "image_size": 32, "crop": 32, "engine": "torch"}
    short = {"steps": 6, "batch_size": 6, "log_every": 1, "min_images_per_class": 1, "accelerator": "cpu"}
    return unida.adapt(
        write(place / "source", "flat", source),
        write(place / "target", "photo", target),
        place / "run",
        cache=place / "cache",
        **{**tiny, **short, **ROWS[row], **changes},
    )


def assert_finite_and_answers(run: unida.Run, images: int, classes: set[str]) -> None:
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(value) for line in lines for value in line.values() if isinstance(value, float))
    saved = (
        run.folder / "checkpoint" / ("resume.safetensors" if lines else "model.safetensors")
    )  # heads alone are solved
    state = load_file(saved)
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())
    with (run.folder / "predictions.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == images
    assert all(0 <= float(answer["unknown_score"]) <= 1 for answer in answers)
    assert {answer["label"] for answer in answers} <= classes | {"unknown"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("row", ROWS)
def test_every_method_trains_on_very_little(row: str, case: str, tmp_path: Path) -> None:
    source, target, changes = CASES[case]
    modes = METHODS[ROWS[row]["method"]].trains
    train = changes["train"] if changes["train"] in modes else modes[0]
    run = adapt(tmp_path, row, source, target, **{**changes, "train": train})
    assert_finite_and_answers(run, sum(target.values()), set(source))


@pytest.mark.parametrize("case", OF_ONE_METHOD)
def test_some_have_weak_spots_of_their_own(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    method, source, target, changes = OF_ONE_METHOD[case]
    run = adapt(tmp_path, method, source, target, **changes)
    assert_finite_and_answers(run, sum(target.values()), set(source))
    if method == "ros":
        last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["phase"] == "adaptation" and "labelled" in last
        assert ("no target image stands out" in caplog.text) == ("rotation" not in last)


@pytest.mark.parametrize(
    ("row", "changes", "told"),
    [
        ("cmu", {"batch_size": 1}, "--batch-size 1 is one image in each process, but cmu has BatchNorm"),
        ("usfda", {"batch_size": 1}, "--batch-size 1 is one image in each process, but usfda has BatchNorm"),
        ("usfda", {"bottleneck": 60_000}, "--bottleneck 60000 with 2 classes needs"),
        ("inheritune", {"batch_size": 1}, "--batch-size 1 is one image in each process, but inheritune has BatchNorm"),
        ("ati", {"train": "tail"}, "ati cannot work with --train tail: use --train head"),
        ("usfda", {"procurement_share": 1.0}, "--procurement-share is 1.0: it must be"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(row: str, changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(unida.UserError) as caught:
        adapt(tmp_path, row, TWO, {"star": 4, "key": 4}, **{"train": "head", **changes})
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
