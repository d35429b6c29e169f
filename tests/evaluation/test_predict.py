"""Predictions for new images: the same answers as from the cache, and a table that says all there is to say."""

import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image

from unida.answering.alone import Answers, Scored, decide, score_pixels
from unida.data.augment import Preprocess
from unida.data.folders import ImageFile, Skipped, scan
from unida.data.images import ResizeMode
from unida.data.pixels import Pixels, decode_in_memory, open_pixels
from unida.evaluation import predict
from unida.evaluation.predict import Prediction, Predictions, name_answers, predict_files
from unida.methods.base import Method, Problem
from unida.methods.ovanet import OVANet
from unida.methods.ovanet_options import OVANetOptions
from unida.models.backbone import create_backbone

CLASSES = ("cup", "lamp", "chair")
INPUTS = Preprocess(32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), torch.device("cpu"))


@pytest.fixture(scope="module")
def method() -> Method:
    torch.manual_seed(0)
    method = OVANet(create_backbone("test_resnet.r160_in1k", "none"), Problem(len(CLASSES)), OVANetOptions())
    with torch.no_grad():
        method.features(torch.randn(16, 3, 32, 32))
        method.closed.weight.mul_(30)
        method.one_vs_all.weight.mul_(5)
    return method.eval()


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def files(tmp_path: Path) -> list[ImageFile]:
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(9):
        height, width = rng.integers(30, 80, 2)
        pixels = rng.integers(0, 256, 3) + rng.integers(-20, 20, (height, width, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    (folder / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    (folder / "empty.png").touch()
    return scan(folder)[0]


def alone(scored: Scored, digests: Sequence[str]) -> Answers:
    assert len(scored) == len(digests)
    return decide(scored.probabilities, scored.unknown, 0.5)


@pytest.mark.parametrize("mode", ["squash", "short"])
@pytest.mark.parametrize("chunk", [1, 4, 256])  # with 1, whole chunks give no picture
def test_answers_are_those_of_the_cached_path(
    tmp_path: Path,
    method: Method,
    fabric: Fabric,
    files: list[ImageFile],
    mode: ResizeMode,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predict, "CHUNK", chunk)
    found = predict_files(method, CLASSES, files, mode, 36, INPUTS, fabric, alone, visible=False)
    assert not (tmp_path / "cache").exists()
    pixels = open_pixels(files, resize=mode, size=36, cache_dir=tmp_path / "cache")
    scored = score_pixels(method, pixels, INPUTS, fabric, visible=False)
    cached = name_answers(alone(scored, [file.digest for file in pixels.files]), pixels, CLASSES)
    assert len(found) == len(cached) == 9
    assert len({p.label for p in found}) > 1
    for ours, theirs in zip(found, cached, strict=True):
        assert (ours.path, ours.label) == (theirs.path, theirs.label)
        assert ours[2:] == pytest.approx(theirs[2:], abs=1e-5)
    assert sorted((s.path, s.reason) for s in found.skipped) == sorted((s.path, s.reason) for s in pixels.skipped)
    assert {Path(s.path).name for s in found.skipped} == {"torn.jpg", "empty.png"}


def test_memory_stays_flat(
    method: Method, fabric: Fabric, files: list[ImageFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = []

    def counted(some: list[ImageFile], *how: object) -> Pixels:
        chunks.append(len(some))
        return decode_in_memory(some, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(predict, "CHUNK", 4)
    monkeypatch.setattr(predict, "decode_in_memory", counted)
    predict_files(method, CLASSES, files, "squash", 36, INPUTS, fabric, alone, visible=False)
    assert chunks == [4, 4, 3]


def test_no_files_no_answers(method: Method, fabric: Fabric) -> None:
    found = predict_files(method, CLASSES, [], "squash", 36, INPUTS, fabric, alone, visible=False)
    assert found == [] and found.skipped == []


def test_files_that_all_fail_are_all_skipped(method: Method, fabric: Fabric, files: list[ImageFile]) -> None:
    bad = [file for file in files if file.path.name in ("torn.jpg", "empty.png")]
    found = predict_files(method, CLASSES, bad, "squash", 36, INPUTS, fabric, alone, visible=False)
    assert found == []
    assert {Path(s.path).name: s.reason for s in found.skipped}["empty.png"] == "empty file"


def test_ids_become_names_in_the_order_of_the_images(tmp_path: Path, files: list[ImageFile]) -> None:
    pixels = open_pixels(files, resize="squash", size=36, cache_dir=tmp_path / "cache").subset([0, 1, 2, 3])
    answers = Answers(
        prediction=torch.tensor([2, 3, 0, 1]),
        closed=torch.tensor([2, 0, 0, 1]),
        probability=torch.tensor([0.5, 0.25, 1.0, 0.75]),
        unknown_score=torch.tensor([0.0, 1.0, 0.25, 0.5]),
    )
    assert name_answers(answers, pixels, CLASSES) == [
        (str(pixels.files[0].path), "chair", 0.5, 0.0),
        (str(pixels.files[1].path), "unknown", 0.25, 1.0),
        (str(pixels.files[2].path), "cup", 1.0, 0.25),
        (str(pixels.files[3].path), "lamp", 0.75, 0.5),
    ]


def test_answers_come_in_the_order_and_under_the_names_of_given_paths() -> None:
    found = Predictions(
        [Prediction("a.png", "cup", 0.5, 0.25), Prediction("b/c.png", "unknown", 0.75, 1.0)],
        [Skipped("torn.jpg", "truncated")],
    )
    asked = found.of(["./b/c.png", "torn.jpg", "a.png", "b//c.png", "never.png"])
    assert list(asked) == [
        ("./b/c.png", "unknown", 0.75, 1.0),
        ("a.png", "cup", 0.5, 0.25),
        ("b//c.png", "unknown", 0.75, 1.0),
    ]
    assert asked.skipped == [Skipped("torn.jpg", "truncated")]


def test_the_table_has_a_row_per_file_by_path(tmp_path: Path) -> None:
    predictions = Predictions(
        [
            Prediction("z/2.png", "unknown", 0.123456, 0.98765),
            Prediction('a/odd, "name"\n.png', "cup", 1.0, 0.0),
        ],
        [Skipped("m/torn.jpg", "truncated or damaged: 3 bytes, no more")],
    )
    path = tmp_path / "made" / "for it" / "answers.csv"
    predictions.write_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["path", "label", "probability", "unknown_score", "skipped"],
            ['a/odd, "name"\n.png', "cup", "1.0000", "0.0000", ""],
            ["m/torn.jpg", "", "", "", "truncated or damaged: 3 bytes, no more"],
            ["z/2.png", "unknown", "0.1235", "0.9877", ""],
        ]
    assert os.listdir(path.parent) == ["answers.csv"]  # nothing half-written stays


def test_a_second_table_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    Predictions([Prediction("a.png", "cup", 1, 0), Prediction("b.png", "cup", 1, 0)]).write_csv(path)
    Predictions([Prediction("c.png", "lamp", 0.5, 0)]).write_csv(path)
    assert path.read_text().split() == ["path,label,probability,unknown_score,skipped", "c.png,lamp,0.5000,0.0000,"]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_names_in_any_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    for raw in ("Größe/椅子.png".encode(), b"caf\xe9.png"):  # UTF-8, and Latin-1 from an old archive
        Predictions([Prediction(os.fsdecode(raw), "cup", 1, 0)], [Skipped(os.fsdecode(raw), "why")]).write_csv(
            tmp_path / "answers.csv"
        )
        assert (tmp_path / "answers.csv").read_bytes().count(raw) == 2
