"""Engines give torch's features, on shelves of their own; what cannot work says so in one line."""

import ctypes
import logging
import sys
from pathlib import Path

import pytest
import torch
from tiny_shelf import CROP, preprocess_for

from unida.config import config_from_options, fingerprint_of
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.features import engines
from unida.features.kept import FeatureInputs
from unida.features.stem import stem_of
from unida.models.backbone import POOLED, Backbone, create_backbone
from unida.support.signals import _Stack

IMAGES = torch.randn(2, 3, CROP, CROP, generator=torch.Generator().manual_seed(0))


def broken(*_: object) -> None:
    raise RuntimeError("no such operation\nand a long trace")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(engines.importlib.metadata, "version", lambda name: "1.0")


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_torch_keeps_its_key(backbone: Backbone) -> None:
    stem = stem_of(backbone, CROP, "fp16", "torch")
    assert torch.equal(stem.run(IMAGES), backbone.stem(IMAGES))
    assert stem.key.endswith(f"{backbone.mean} {backbone.std}")  # features of earlier versions are found


def test_without_the_package_auto_is_torch(backbone: Backbone, not_installed: None) -> None:
    assert stem_of(backbone, CROP, "fp16", "auto").key == stem_of(backbone, CROP, "fp16", "torch").key


def test_a_missing_engine_that_was_asked_for_names_the_command(backbone: Backbone, not_installed: None) -> None:
    with pytest.raises(UserError, match=r'--engine openvino .*pip install "unida\[fast\]"') as caught:
        stem_of(backbone, CROP, "fp16", "openvino")
    assert "\n" not in str(caught.value)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UserError, match="engine"):
        config_from_options({"engine": "fast"})


def test_an_engine_without_kept_features_is_refused() -> None:
    with pytest.raises(UserError, match="--engine has no effect with --train all"):
        config_from_options({"engine": "openvino", "train": "all"})


def test_the_engine_is_where_a_run_computes_not_what_it_trains() -> None:
    names = ("auto", "torch", "openvino")
    assert len({fingerprint_of(config_from_options({"engine": name, "train": "tail"})) for name in names}) == 1


def test_a_failed_conversion_falls_back_to_torch_with_one_line(
    backbone: Backbone, installed: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "_open_openvino", broken)
    with caplog.at_level(logging.INFO, logger="unida"):
        stem = stem_of(backbone, CROP, "fp16", "auto")
        assert not caplog.records, "nothing is made ready before it is needed"
        assert all(torch.equal(stem.run(IMAGES), backbone.stem(IMAGES)) for _ in range(2))
    assert [record.getMessage() for record in caplog.records] == [
        "features: openvino cannot run test_resnet (no such operation); torch computes them"
    ]


def test_a_failed_conversion_that_was_asked_for_is_an_error(
    backbone: Backbone, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_open_openvino", broken)
    stem = stem_of(backbone, CROP, "fp16", "openvino")
    with pytest.raises(UserError, match="--engine openvino cannot run test_resnet") as caught:
        stem.run(IMAGES)
    assert "\n" not in str(caught.value)


def test_inside_a_step_the_frozen_part_normalises_by_its_own_statistics(backbone: Backbone) -> None:
    """Views are computed when a step first needs them: the network is in training mode then."""
    stem = stem_of(backbone, CROP, "fp16", "torch")
    expected, before = stem.run(IMAGES), {name: value.clone() for name, value in backbone.named_buffers()}
    backbone.train()
    assert torch.equal(stem.run(IMAGES), expected)
    assert backbone.training
    assert all(torch.equal(value, before[name]) for name, value in backbone.named_buffers())
    backbone.eval()


@pytest.mark.parametrize("wrong", [lambda x: x * 1.001, lambda x: x * float("nan")])
def test_an_engine_with_other_features_is_refused(backbone: Backbone, wrong: object) -> None:
    with pytest.raises(ValueError, match="differ from torch's"):
        engines._compare(lambda images: wrong(backbone.stem(images)), backbone, CROP)  # type: ignore[operator]
    engines._compare(backbone.stem, backbone, CROP)


# ---- OpenVINO itself -------------------------------------------------------------------------------------------------


@pytest.fixture
def openvino() -> None:
    """Skips where it is absent. `pytest.importorskip` would import it, and its telemetry with it."""
    if engines.importlib.util.find_spec("openvino") is None:
        pytest.skip('openvino is not installed: pip install "unida[fast]"')


def close(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((ours - expected).abs().max() <= 1e-5 * expected.abs().max())


@pytest.mark.parametrize(
    ("name", "tap", "crop"),
    [
        ("test_resnet", "layer2", CROP),
        ("test_resnet", POOLED, CROP),
        ("test_vit", "blocks.1", 96),
        ("test_vit", POOLED, 96),
    ],
)
def test_openvino_gives_torchs_features(openvino: None, name: str, tap: str, crop: int) -> None:
    torch.manual_seed(0)
    backbone = create_backbone(name, "none")
    backbone.freeze(tap, torch.float16)
    stem = stem_of(backbone, crop, "fp16", "openvino")
    images = torch.randn(5, 3, crop, crop)
    with torch.inference_mode():
        expected = backbone.stem(images)
        ours = stem.run(images.contiguous(memory_format=torch.channels_last))
    assert ours.shape == expected.shape == (5, *stem.shape)
    assert close(ours, expected)
    assert torch.equal(stem.run(images[:2]), ours[:2])  # a resumed run has other batches, and the same bits


def test_openvino_leaves_the_backbone_as_it_is(openvino: None) -> None:
    torch.manual_seed(0)
    backbone = create_backbone("test_vit", "none")
    backbone.freeze(POOLED, torch.float16)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    stem_of(backbone, 96, "fp16", "openvino")
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def stack() -> tuple[int | None, int]:
    now = _Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(now))
    return now.place, now.flags


@pytest.mark.skipif(sys.platform != "linux", reason="stack_t is that of Linux")
def test_openvino_leaves_the_stack_of_signals_as_it_is(openvino: None, backbone: Backbone) -> None:
    """Or a Ctrl-C after two networks have come and gone ends the process."""
    before = stack()
    for _ in range(2):
        stem_of(backbone, CROP, "fp16", "openvino").run(torch.zeros(1, 3, CROP, CROP))
        assert stack() == before


def test_features_of_two_engines_never_mix(openvino: None, backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    def inputs(engine: str) -> FeatureInputs:
        stem = stem_of(backbone, CROP, "fp16", engine)  # type: ignore[arg-type]
        return FeatureInputs(preprocess_for(backbone), stem, 1, tmp_path)

    by_torch = inputs("torch")
    by_torch.prepare(by_torch.jobs({}, [(pixels, by_torch.every_view)]), visible=False)
    by_openvino = inputs("openvino")
    jobs = by_openvino.jobs({}, [(pixels, by_openvino.every_view)])
    assert by_openvino.count_missing(jobs) == 2 * len(pixels)
    assert by_openvino.stem.key.startswith(by_torch.stem.key + " openvino 20")
    by_openvino.prepare(jobs, visible=False)
    index = torch.arange(len(pixels)).numpy()
    torch.testing.assert_close(
        by_openvino.test_view(pixels, index), by_torch.test_view(pixels, index), rtol=2e-3, atol=1e-5
    )


def test_telemetry_is_not_imported(openvino: None, backbone: Backbone) -> None:
    stem_of(backbone, CROP, "fp16", "openvino")
    assert "openvino_telemetry" not in sys.modules
