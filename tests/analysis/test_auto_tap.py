"""`--tap auto`: which images are measured, which taps may be chosen, and what is chosen of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unida.analysis import auto_tap, measures
from unida.analysis.auto_tap import Curves, choose_taps, has_open_tap, measure_curves, with_taps
from unida.analysis.layers import LayerOptions, study_layers
from unida.config import Config, config_from_options
from unida.data.augment import Preprocess
from unida.data.domains import open_domains
from unida.data.glyphs import write_glyphs
from unida.errors import UserError
from unida.runs.folder import complete

CPU = torch.device("cpu")
SPA = {"spa": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("auto")
    write_glyphs(place, shared=3, source_private=1, target_private=1, per_class=6, size=40)
    return place


def options(folder: Path, **changes: Any) -> Config:
    plain = {"source": folder / "source", "target": folder / "target", "cache": folder / "cache"}
    small = {"backbone": "test_resnet.r160_in1k", "weights": "none", "image_size": 40, "crop": 32}
    return complete(config_from_options({**plain, **small, "train": "tail", **changes}), has_gpu=False)


def choose(config: Config) -> tuple[str | None, str | None]:
    return choose_taps(config, *open_domains(config.data, visible=False), CPU, visible=False)


def test_the_measures_are_those_of_the_layer_study(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "L2_STRENGTHS", (1e-2, 1e-1))  # for speed: more of them are the measures' own matter
    config = options(folder, tap="auto", seed=3)
    source, target = open_domains(config.data, visible=False)
    study = study_layers(
        LayerOptions(config.data, folder, config.model.backbone, "none", words=4, seed=3), visible=False
    )
    backbone = auto_tap.seeded_backbone(config, CPU)
    preprocess = Preprocess(32, backbone.mean, backbone.std, CPU)
    curves = measure_curves(backbone, preprocess, source, target, seed=3, visible=False)
    assert curves.source_ntr == [row.source_ntr for row in study.taps]
    assert curves.dis == [row.dis for row in study.taps]
    assert len(set(curves.dis)) > 1 and len(set(curves.source_ntr)) > 1
    assert curves.looked_at == "24 + 24 images"


def test_of_large_domains_few_images_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_tap, "IMAGES", 15)
    for measure in ("source_negative_transfer_risk", "domain_invariance_score"):
        monkeypatch.setattr(auto_tap, measure, lambda *arguments: 0.5)
    config = options(folder, tap="auto")
    source, target = open_domains(config.data, visible=False)
    backbone = auto_tap.seeded_backbone(config, CPU)
    preprocess = Preprocess(32, backbone.mean, backbone.std, CPU)
    assert measure_curves(backbone, preprocess, source, target, 0, visible=False).looked_at == "15 + 15 images"


def test_of_many_classes_some_are_shown_by_many_images() -> None:
    by_chance = np.arange(300)
    many = np.arange(4000) % 200  # twenty images of each class
    rows = auto_tap._images_of_few_classes(many, by_chance, seed=0)
    assert len(np.unique(rows)) == 300
    assert len(np.unique(many[rows])) == 30
    assert np.bincount(many[rows])[np.unique(many[rows])].min() > 2
    assert auto_tap._images_of_few_classes(many % 30, by_chance, seed=0) is by_chance


def test_many_classes_are_measured_beside_images_drawn_by_chance(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NTR of some classes, DIS of all: with three of four classes looked at, each measure is that of its own images."""
    monkeypatch.setattr(auto_tap, "CLASSES", 3)
    monkeypatch.setattr(auto_tap, "IMAGES", 12)
    seen: dict[str, Any] = {}

    def ntr(features: torch.Tensor, labels: torch.Tensor, seed: int) -> float:
        seen["ntr"] = (len(features), labels.unique().tolist())
        return 0.5

    def dis(source: torch.Tensor, target: torch.Tensor, seed: int, *images: np.ndarray) -> float:
        seen["dis"] = (len(source), len(target), [len(part) for part in images])
        return 0.5

    monkeypatch.setattr(auto_tap, "source_negative_transfer_risk", ntr)
    monkeypatch.setattr(auto_tap, "domain_invariance_score", dis)
    config = options(folder, tap="auto")
    source, target = open_domains(config.data, visible=False)
    backbone = auto_tap.seeded_backbone(config, CPU)
    preprocess = Preprocess(32, backbone.mean, backbone.std, CPU)
    measure_curves(backbone, preprocess, source, target, 0, visible=False)
    assert seen["ntr"][0] == 12 and len(seen["ntr"][1]) == 3
    assert seen["dis"] == (12, 12, [12, 12])


FALLING = [0.9, 0.8, 0.7, 0.3, 0.1]  # with NTR the other way round, layer2 is the deepest that passes both
RISING = FALLING[::-1]


@pytest.mark.parametrize(
    ("curve", "given", "chosen"),
    [
        (FALLING, {"tap": "auto"}, ("layer2", None)),
        (RISING, {"tap": "auto"}, ("layer3", None)),  # layer4 passes too, but something must be left to train
        (FALLING, {"tap": "auto", **SPA, "spa_tap": "auto"}, ("layer2", "layer3")),  # behind layer2 the mildest
        (RISING, {"tap": "auto", **SPA, "spa_tap": "layer2"}, ("layer1", "layer2")),
        (FALLING, {"tap": "auto", **SPA}, ("layer2", None)),
        (FALLING, {"tap": "layer3", **SPA, "spa_tap": "auto"}, ("layer3", "layer4")),
        (FALLING, {**SPA, "spa_tap": "auto"}, (None, "layer4")),  # the default tap, layer3, is frozen
        (FALLING, {"train": "all", **SPA, "spa_tap": "auto"}, (None, "layer2")),  # nothing is frozen
        (FALLING, {"train": "head", **SPA, "spa_tap": "auto"}, (None, "layer2")),  # all is: nothing need be left
    ],
)
def test_a_tap_is_chosen_among_those_that_make_sense(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    curve: list[float],
    given: dict[str, Any],
    chosen: tuple[str | None, str | None],
) -> None:
    curves = Curves([1 - value for value in curve], curve, "a few images")
    monkeypatch.setattr(auto_tap, "measure_curves", lambda *arguments: curves)
    caplog.set_level("INFO", logger="unida")
    config = options(folder, **given)
    assert has_open_tap(config)
    assert choose(config) == chosen
    told = [record.getMessage() for record in caplog.records if "chosen by source NTR" in record.getMessage()]
    asked = {"tap": chosen[0], "spa.tap": chosen[1]}
    expected = [f"{name}: {tap}," for name, tap in asked.items() if given.get(name.replace(".", "_")) == "auto"]
    assert [line.partition(" chosen")[0] for line in told] == expected
    closed = with_taps(config, *chosen)
    assert not has_open_tap(closed)
    assert (closed.model.tap, closed.spa.spa_tap) == chosen


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tap": "auto", **SPA, "spa_tap": "stem"}, "--tap auto: backbone 'test_resnet.r160_in1k' has no tap before"),
        ({"tap": "layer4", **SPA, "spa_tap": "auto"}, "--spa.tap auto: there is no tap after --tap layer4"),
        ({"tap": "auto", **SPA, "spa_tap": "layer9"}, r"has no tap 'layer9' \(did you mean"),
        ({"tap": "layer9", **SPA, "spa_tap": "auto"}, r"has no tap 'layer9' \(did you mean"),
        ({"tap": "auto", "backbone": "vit_tiny_patch16_224", "crop": 20}, "--crop 20: backbone"),
    ],
)
def test_what_leaves_no_choice_is_reported_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(auto_tap, "measure_curves", lambda *arguments: pytest.fail("the work began"))
    with pytest.raises(UserError, match=message):
        choose(options(folder, **given))


def test_on_every_machine_there_must_be_something_to_cut(folder: Path) -> None:
    """Unless --train is set, it is what only the machine knows."""
    given = {"source": folder / "source", "target": folder / "target", "tap": "auto"}
    with pytest.raises(UserError, match="--tap has no effect with --train all"):
        complete(config_from_options(given), has_gpu=True)
    assert complete(config_from_options(given), has_gpu=False).model.train == "tail"
    assert complete(config_from_options({**given, "train": "tail"}), has_gpu=True).model.tap == "auto"
