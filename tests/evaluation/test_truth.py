"""The truth of the images that a run learned from: those images, in their order."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from unida.data.domains import open_domains
from unida.data.glyphs import write_glyphs
from unida.data.options import DataOptions
from unida.evaluation.truth import read_truth_of_run, read_truth_of_training

CLASSES = ("star", "house")


def test_of_a_benchmark_with_parts_it_is_the_part_to_adapt_on(tmp_path: Path) -> None:
    """DomainNet adapts on its train lists and evaluates on its test lists."""
    folder = tmp_path / "real" / "airplane"
    folder.mkdir(parents=True)
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    for part, numbers in (("train", (0, 1, 2)), ("test", (3,))):
        (tmp_path / f"real_{part}.txt").write_text("".join(f"real/airplane/{n}.png 1\n" for n in numbers))
    options = DataOptions(benchmark="domainnet", root=tmp_path, pair="P:R", image_size=8, cache=tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    learned = read_truth_of_training(options, ("airplane",), visible=False)
    assert learned is not None and sorted(file.path.name for file in learned.pixels.files) == [
        "0.png",
        "1.png",
        "2.png",
    ]
    evaluated = read_truth_of_run(options, ("airplane",), None, visible=False)
    assert [file.path.name for file in evaluated.pixels.files] == ["3.png"]


def test_of_own_folders_it_is_without_dropped_copies_and_needs_labels(tmp_path: Path) -> None:
    glyphs = write_glyphs(tmp_path / "data", shared=2, source_private=0, target_private=1, per_class=3, size=16)
    (of_source, of_target) = (next((folder / "star").iterdir()) for folder in (glyphs.source, glyphs.target))
    shutil.copy(of_source, glyphs.target / "house" / "copy.png")
    shutil.copy(of_target, glyphs.target / "house" / "again.png")
    (tmp_path / "cache").mkdir()
    usual = {"source": glyphs.source, "target": glyphs.target, "image_size": 8, "cache": tmp_path / "cache"}
    options = DataOptions(**usual, duplicates="drop", target_labels=True)
    truth = read_truth_of_training(options, CLASSES, visible=False)
    target = open_domains(options, visible=False)[1]
    assert truth is not None and truth.pixels.files == target.pixels.files and len(truth.labels) == 9
    assert truth.names[:2] == CLASSES and len(truth.names) == 3
    assert read_truth_of_training(DataOptions(**usual), CLASSES, visible=False) is None
