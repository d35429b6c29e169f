"""UAN, I-UAN and CMU on data with which batches, classes or bounds could break down: they train, with finite numbers.

Real runs on drawn pictures, in a second or less. A loss, weight or score that is not finite ends a run with an error.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

import unida
from unida.data.glyphs import write_glyphs

FOLDERS: dict[str, dict[str, int]] = {  # classes
    "two source classes": {"shared": 1, "source_private": 1, "target_private": 1},
    "one image in a class": {"shared": 2, "source_private": 1, "target_private": 1},
    "a target smaller than a batch": {"shared": 2, "source_private": 1, "target_private": 1},
    "all unknown": {"shared": 1, "source_private": 2, "target_private": 2},
    "none unknown": {"shared": 3, "source_private": 0, "target_private": 0},
}
METHODS: dict[str, dict[str, Any]] = {
    "uan": {"method": "uan"},
    "iuan": {"method": "iuan", "accuracy_gate": 0.0},  # open from the start
    "cmu": {"method": "cmu"},
    "cmu as released": {"method": "cmu", "as_released": True},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("degenerate")


def drawn(place: Path, case: str) -> tuple[Path, Path]:
    """The folders of a case, drawn when first asked for."""
    out = place / case
    if out.exists():
        return out / "source", out / "target"
    made = write_glyphs(out, per_class=4, size=32, **FOLDERS[case])
    if case == "one image in a class":
        for path in sorted((made.source / made.shared[0]).iterdir())[1:]:
            path.unlink()
    if case == "a target smaller than a batch":
        for path in sorted(made.target.rglob("*.png"))[5:]:
            path.unlink()
    if case == "all unknown":
        shutil.rmtree(made.target / made.shared[0])
    return made.source, made.target


def run(place: Path, name: str, case: str, **options: Any) -> unida.Run:
    source, target = drawn(place, case)
    tiny = {"backbone": "test_resnet", "weights": "none", "image_size": 32, "crop": 32, "accelerator": "cpu"}
    short = {
        "train": "head",
        "regime": "published",
        "views": 1,
        "engine": "torch",
        "steps": 9,
        "batch_size": 8,
        "min_images_per_class": 1,
    }
    given = {**tiny, **short, "cache": place / "cache", "target_labels": True, **METHODS[name], **options}
    return unida.adapt(source, target, place / f"{name}, {case}, {options}", **given)


@pytest.mark.parametrize("case", FOLDERS)
@pytest.mark.parametrize("name", METHODS)
def test_it_trains_and_answers(place: Path, name: str, case: str) -> None:
    metrics = run(place, name, case).metrics
    assert metrics is not None and metrics["accuracy"] is not None
    assert (metrics["hos"] is None) == (case in ("all unknown", "none unknown"))  # there is no such number


@pytest.mark.parametrize("name", METHODS)
def test_batches_of_two_images_may_show_one_class(place: Path, name: str) -> None:
    assert run(place, name, "two source classes", batch_size=2).metrics is not None


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_one_image_is_refused_where_batchnorm_needs_two(place: Path, name: str) -> None:
    if name == "cmu":
        with pytest.raises(unida.UserError, match="--batch-size 1 is one image in each process, but cmu has BatchNorm"):
            run(place, name, "two source classes", batch_size=1)
    else:
        assert run(place, name, "two source classes", batch_size=1).metrics is not None
