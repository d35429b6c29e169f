"""A finished run as an ONNX file: the script beside it answers as `unida predict` does."""

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import unida
from unida.answering.alone import Answers, decide
from unida.errors import UserError
from unida.export import parity
from unida.export.files import Traced, Written, write_torch

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from unida.export.standalone import files  # noqa: E402


@pytest.fixture(scope="module")
def exported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export for all tests: tracing takes seconds."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    written = unida.load(finished).export(onnx=path)
    assert [item.path for item in written] == [path] and written[0].images >= 28
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """New pictures of every kind that needs care: sideways, see-through, 16 bits, long, and a damaged one."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)

    def made(*shape: int) -> Any:
        return Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).resize((90, 50))

    for number in range(8):
        made(5, 4, 3).save(folder / f"plain{number}.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    made(5, 4, 3).save(folder / "sideways.jpg", exif=exif, quality=95)
    made(5, 4, 4).save(folder / "see-through.png")
    made(5, 4, 3).convert("P").save(folder / "palette.png")
    Image.fromarray(draw.integers(0, 2**16, (20, 30), dtype=np.uint16)).save(folder / "deep.png")
    made(5, 4, 3).resize((400, 20)).save(folder / "long.webp")
    (folder / "damaged.png").write_bytes((folder / "plain0.png").read_bytes()[:60])
    return folder


def test_the_script_answers_as_predict_does(exported: Path, finished: Path, pictures: Path) -> None:
    """In a process that cannot import this package or torch."""
    blocked = "import sys, runpy; sys.modules['torch'] = sys.modules['unida'] = None; sys.argv = sys.argv[1:]; "
    command = [sys.executable, "-c", f"{blocked}runpy.run_path(sys.argv[0], run_name='__main__')"]
    done = subprocess.run([*command, exported.with_suffix(".py"), pictures], capture_output=True, text=True, check=True)
    rows = {row["path"]: row for row in csv.DictReader(io.StringIO(done.stdout))}
    ours = unida.load(finished).predict(pictures)
    assert len(rows) == len(ours) + 1 == 14
    assert rows[str(pictures / "damaged.png")]["skipped"]
    for prediction in ours:
        row = rows[prediction.path]
        assert row["label"] == prediction.label, row
        assert float(row["probability"]) == pytest.approx(prediction.probability, abs=2e-4)
        assert float(row["unknown_score"]) == pytest.approx(prediction.unknown_score, abs=2e-4)


def call(script: Path, *given: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *given], capture_output=True, text=True)


def test_the_script_says_how_it_is_used(exported: Path, pictures: Path) -> None:
    script = exported.with_suffix(".py")
    usage = "usage: python model.py PICTURE_OR_FOLDER"
    for given, code, reason in (([], 2, ""), (["--help"], 0, ""), ([pictures, "gone"], 2, "gone: no such")):
        done = call(script, *given)
        assert (done.returncode, done.stdout) == (code, "")
        assert usage in done.stderr and reason in done.stderr and "Traceback" not in done.stderr


def test_the_script_finds_the_files_that_predict_finds(tmp_path: Path, pictures: Path, finished: Path) -> None:
    folder = tmp_path / "given"
    (folder / ".hidden").mkdir(parents=True)
    for hidden in (folder / ".hidden" / "a.png", folder / ".b.png"):
        hidden.write_bytes((pictures / "plain0.png").read_bytes())
    (folder / "file.png").symlink_to(pictures / "plain1.png")
    (folder / "linked").symlink_to(pictures)
    (folder / "loop").symlink_to(folder)
    (folder / "gone.png").symlink_to(tmp_path / "nothing.png")
    (folder / "notes.txt").write_text("no picture")
    os.mkfifo(folder / "pipe.png")
    found = files([str(folder)])
    assert found == sorted(found)
    ours = unida.load(finished).predict(folder)
    left_out = {str(folder / name) for name in ("notes.txt", "loop", "pipe.png")}
    assert {*map(str, found)} == {p.path for p in ours} | {item.path for item in ours.skipped} - left_out


def test_the_file_says_what_it_is_and_takes_any_batch(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    about = json.loads(session.get_modelmeta().custom_metadata_map["unida"])
    assert about["classes"] == ["arrow", "heart", "house", "star"]
    assert (about["image_size"], about["crop"], about["resize"], about["neighbours"]) == (40, 32, "squash", 2)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    names = ["label", "probability", "unknown_score", "probabilities"]
    together = session.run(names, {"images": images})
    alone = [session.run(names, {"images": images[i : i + 1]}) for i in range(5)]
    for place in range(4):
        np.testing.assert_allclose(together[place], np.concatenate([one[place] for one in alone]), atol=1e-5)
    unknown = together[2] > about["threshold"]
    np.testing.assert_array_equal(together[0], np.where(unknown, 4, together[3].argmax(axis=1)))


def expected(shaky: int = 0) -> parity.Expected:
    """Twenty images of class 0, far from the threshold, the first ones shaky; C is 3."""
    n = 20
    answers = Answers(
        torch.zeros(n, dtype=int), torch.zeros(n, dtype=int), torch.full((n,), 0.8), torch.full((n,), 0.2)
    )
    centres = torch.zeros(n, 2, 2, 3, dtype=torch.uint8)
    return parity.Expected([Path()] * n, centres, answers, 0.5, 3, np.arange(n) < shaky)


@pytest.mark.parametrize(("moved", "shaky", "passes"), [(0, 0, True), (1, 0, False), (2, 2, True), (3, 2, False)])
def test_which_scores_may_differ(moved: int, shaky: int, passes: bool) -> None:
    unknown = np.full(20, 0.2)
    unknown[:moved] += 0.001
    given = (expected(shaky), np.zeros(20, dtype=int), np.full(20, 0.8), unknown, "--onnx m.onnx")
    if passes:
        apart = parity.compare(*given)
        assert apart.most == pytest.approx(0.001 if moved else 0, abs=1e-6) and apart.excused == moved
    else:
        with pytest.raises(UserError, match="0 have another label and 1 a score"):
            parity.compare(*given)


def test_the_note_says_why_a_score_may_differ_more(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    note = Written(tmp_path / "model.onnx", 32, parity.Apart(3.2e-7, 0)).note()
    assert note.endswith("on 32 images it answers as unida predict does, scores within 0.0001")
    note = Written(tmp_path / "model.onnx", 32, parity.Apart(3.2e-3, 2)).note()
    assert "within 0.0001, but for 2 image(s) with up to 0.0032: there" in note


def test_another_label_or_a_score_that_is_no_number_is_refused() -> None:
    labels, scores = np.zeros(20, dtype=int), (np.full(20, 0.8), np.full(20, 0.2))
    other, broken = labels.copy(), np.full(20, np.nan)
    other[7] = 3
    with pytest.raises(UserError, match="1 have another label"):
        parity.compare(expected(), other, *scores, "x")
    with pytest.raises(UserError, match="20 a score"):
        parity.compare(expected(shaky=20), labels, scores[0], broken, "x")


def test_images_whose_scores_hang_on_the_last_bits_are_found() -> None:
    probability, unknown = torch.tensor([0.8, 0.8, 0.8]), torch.tensor([0.2, 0.2, 0.2])
    answers = decide(torch.stack([probability, 1 - probability], dim=1), unknown, 0.5)
    others = [replace(answers, probability=probability + torch.tensor([0.0, 1e-3, 2e-5]))]
    others += [replace(answers, unknown_score=unknown - torch.tensor([0.0, 0.0, 1e-3])), answers]
    assert parity._moved(answers, others).tolist() == [False, True, True]
    assert not parity._moved(answers, others[-1:]).any()


def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path) -> None:
    class Other:
        def module(self) -> Any:
            return lambda images: (torch.ones(len(images)), torch.ones(len(images)), torch.ones(len(images)))

    with pytest.raises(UserError, match="does not answer as unida predict does"):
        write_torch(Traced(Other(), 0, {}, expected(True)), tmp_path / "model.pt2")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_another_script_is_not_overwritten(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    with pytest.raises(UserError, match="take another name"):
        unida.load(finished).export(onnx=tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
