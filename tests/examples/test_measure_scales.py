"""The figures of the scales of NTR and DIS are those of the study of layers."""

import json
import os
import re
from pathlib import Path
from unittest.mock import create_autospec

import measure_scales
import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from scripts import Script

from unida.cli import main
from unida.data.benchmarks import load_benchmark
from unida.models.backbone import create_backbone

OFFICE31 = load_benchmark("office31")
BACKBONE = "test_byobnet.r160_in1k"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Noise around a colour for each class; dslr is darker than webcam."""
    draw = np.random.default_rng(0)
    for domain, dark in (("webcam", 0), ("dslr", 60)):
        for number, name in enumerate(OFFICE31.classes):
            (tmp_path / "office31" / domain / name).mkdir(parents=True)
            colour = np.array([number % 3, number // 3 % 3, number // 9]) * 40 + 100 - dark
            for image in range(2):
                pixels = colour + draw.integers(-40, 41, (32, 32, 3))
                path = tmp_path / "office31" / domain / name / f"{image}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return tmp_path / "office31"


@pytest.mark.skipif(not os.environ.get("UNIDA_SLOW"), reason="takes 20 s: set UNIDA_SLOW=1 to run it")
def test_the_figures_are_those_of_the_study_of_layers(
    root: Path, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer strengths to choose from. What only its time is told of has tests of its own."""
    monkeypatch.setattr("unida.analysis.measures.L2_STRENGTHS", (1e-3, 1e-2))
    monkeypatch.setattr(measure_scales, "measure_curves", create_autospec(measure_scales.measure_curves))
    weights = tmp_path / "weights.safetensors"
    model: dict[str, object] = create_backbone(BACKBONE, "none").model.state_dict()
    save_file(model, weights)  # type: ignore[arg-type]
    words = ["--root", root, "--pair", "webcam:dslr", "--backbone", BACKBONE, "--weights", weights]
    words += ["--cache", tmp_path / "cache"]
    answer = script(measure_scales, *words)
    assert answer.code == 0, answer.err
    assert f"webcam:dslr, {BACKBONE}: 40 + 42 images, 20 classes" in answer.out
    assert "against itself, lowest and highest of all taps: 1.000, 1.000" in answer.out
    halves = re.search(r"against the other: (0\.\d+|1\.000), (1\.000|0\.\d+)", answer.out)
    assert halves is not None and 0.4 < float(halves[1]) <= float(halves[2])

    study = ["--out", str(tmp_path / "study"), "--words", "2"]
    main(["analyze", "layers", "--benchmark", "office31", *map(str, words), *study])
    last = json.loads((tmp_path / "study" / "layers.json").read_text())["taps"][-1]
    assert f"(chosen by held-out images): {last['ntr']:.3f}\n" in answer.out
    assert last["dis"] < 0.3  # not what a domain has against itself


def test_a_folder_without_the_benchmark_is_one_line(tmp_path: Path, script: Script) -> None:
    answer = script(measure_scales, "--root", tmp_path)
    assert answer.code == 2 and answer.err.startswith("error: ") and answer.err.count("\n") == 1
