"""USFDA through the loop on very little: it trains with finite numbers, or refuses in one line."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import unida
from unida.data.glyphs import write_glyphs

CLASSES = ("star", "house", "heart", "arrow")  # of which the target alone has the last


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three source classes; the target has two of them and one of its own. Six pictures of each."""
    out = tmp_path_factory.mktemp("degenerate")
    folders = write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=6, size=40)
    assert (*folders.shared, *folders.source_private, *folders.target_private) == CLASSES
    return out


def folders_of(pictures: Path, out: Path, source: dict[str, int], target: dict[str, int]) -> tuple[Path, Path]:
    """Copies with as many pictures of each class as told."""
    for domain, counts in (("source", source), ("target", target)):
        for name, count in counts.items():
            (out / domain / name).mkdir(parents=True)
            for path in sorted((pictures / domain / name).glob("*.png"))[:count]:
                shutil.copy(path, out / domain / name)
    return out / "source", out / "target"


def adapt(pictures: Path, out: Path, source: dict[str, int], target: dict[str, int], **changes: Any) -> unida.Run:
    options = {
        "method": "usfda",
        "train": "head",
        "backbone": "test_resnet",
        "weights": "none",
        "image_size": 40,
        "crop": 32,
        "min_images_per_class": 1,
        "steps": 8,  # each update once, and four on the target
        "batch_size": 4,
        "bottleneck": 8,
        "spliced_images": 64,
        "accelerator": "cpu",
        "cache": out / "cache",
        **changes,
    }
    return unida.adapt(*folders_of(pictures, out, source, target), out / "run", **options)


USUAL = {"star": 6, "house": 6, "heart": 6}, {"star": 6, "house": 6, "arrow": 6}
LITTLE: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "two source classes": ({"star": 6, "house": 6}, USUAL[1]),
    "one image in a class": ({"star": 6, "house": 1, "heart": 1}, USUAL[1]),
    "one image in every class": ({"star": 1, "house": 1}, USUAL[1]),
    "five target images": (USUAL[0], {"star": 2, "house": 1, "arrow": 2}),
    "one target image": (USUAL[0], {"star": 1}),
    "all of the target unknown": (USUAL[0], {"arrow": 6}),
    "none of the target unknown": (USUAL[0], {"star": 6, "house": 6}),
}
TRIED = [(case, {}) for case in LITTLE] + [
    ("one image in a class", {"train": "all", "batch_size": 2}),  # most batches show one class
    ("five target images", {"train": "all"}),
    ("two source classes", {"instance_weights": "mass", "negative_classes": 150}),
    ("one image in a class", {"regime": "published", "steps": 5}),
    ("two source classes", {"steps": 1}),
]


@pytest.mark.parametrize(("case", "changes"), TRIED, ids=lambda value: str(value))
def test_very_little_is_enough(pictures: Path, tmp_path: Path, case: str, changes: dict[str, Any]) -> None:
    source, target = LITTLE[case]
    run = adapt(pictures, tmp_path, source, target, **changes)
    weights = load_file(tmp_path / "run" / "checkpoint" / "resume.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert torch.equal(weights["method/source_labels"], torch.full((sum(source.values()),), -1))
    answers = run.predict(tmp_path / "target")
    assert len(answers) == sum(target.values())
    assert {answer.label for answer in answers} <= {*source, "unknown"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch_size": 1}, "--batch-size 1 is one image in each process, but usfda has BatchNorm"),
        ({"bottleneck": 60_000}, "--bottleneck 60000 with 3 classes needs"),
        ({"procurement_share": 1.0}, "--procurement-share is 1.0: it must be"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    pictures: Path, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(unida.UserError) as caught:
        adapt(pictures, tmp_path, *USUAL, **changes)
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
