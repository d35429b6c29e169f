"""A finished run as an ONNX file: the script beside it answers as `unida predict` does."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import unida
from unida.errors import UserError
from unida.export import parity

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


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


def test_a_file_that_answers_otherwise_is_not_written(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect = parity.expect

    def other(paths: Any, method: Any, *rest: Any) -> Any:
        expected = expect(paths, method, *rest)
        for parameter in method.backbone.parameters():
            parameter.data.mul_(1.1)  # the graph is traced after this
        return expected

    monkeypatch.setattr("unida.export.files.expect", other)
    with pytest.raises(UserError, match=r"model.pt2 does not answer as unida predict does: of \d+ images"):
        unida.load(finished).export(torch_export=tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_another_script_is_not_overwritten(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    with pytest.raises(UserError, match="take another name"):
        unida.load(finished).export(onnx=tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
