"""Options: names, types, suggestions, and their way to a file and back."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from unida.config import (
    Config,
    check,
    complete,
    config_class,
    config_from_options,
    fingerprint_of,
    load_config,
    save_config,
    saved_method,
)
from unida.data.options import default_cache
from unida.errors import UserError
from unida.methods import METHODS, Card

GROUPS = ("data", "model", "training", "output", "spa", "method")


def flat(config: Config) -> list[tuple[str, Any]]:
    return [item for group in GROUPS for item in vars(getattr(config, group)).items()]


@pytest.mark.parametrize("method", METHODS)
def test_option_names_are_unique_across_groups(method: str) -> None:
    names = [f.name for group in dataclasses.fields(config_class(method)) for f in dataclasses.fields(group.type)]
    assert len(names) == len(set(names)) > 30


@pytest.mark.parametrize("method", METHODS)
def test_defaults_go_to_a_file_and_back(method: str, tmp_path: Path) -> None:
    config = config_from_options({"method": method})
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]  # nothing is left beside it
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert [name for group in GROUPS for name in written[group]] == [name for name, _ in flat(config)]


def test_values_go_to_a_file_and_back(tmp_path: Path) -> None:
    config = config_from_options(
        {
            "method": "source-only",
            "source": "fotos/ä ö: ü",
            "target": Path("yes"),
            "out": tmp_path,
            "pair": "12:30",  # YAML would read these as other things than text
            "benchmark": "null",
            "weights": "1e5",
            "precision": "bf16-mixed",
            "lr": 1e-5,
            "weight_decay": 0,
            "steps": 7,
            "target_labels": True,
            "rejection": "max-prob",
            "rejection_threshold": 1,
        }
    )
    save_config(config, tmp_path / "config.yaml")
    back = load_config(tmp_path / "config.yaml")
    assert back == config
    assert back.data.source == Path("fotos/ä ö: ü")
    assert (back.data.pair, back.data.benchmark, back.model.weights) == ("12:30", "null", "1e5")
    assert (back.training.lr, back.method.rejection_threshold) == (1e-5, 1.0)
    assert [type(a) for _, a in flat(back)] == [type(b) for _, b in flat(config)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stpes": 3}, r"no option 'stpes' \(did you mean 'steps'\?\); see: unida adapt --help"),
        ({"xyzzy": 3}, "no option 'xyzzy'; see"),
        ({"method": "ovnet"}, r"no method 'ovnet' \(did you mean 'ovanet'\?\); see: unida methods"),
        ({"method": "source-only", "entropy_weight": 1.0}, "no option 'entropy_weight'"),
        ({"steps": "3"}, "'steps' is '3': it must be int or None$"),
        ({"spa_task": "x"}, "it must be 'count' or 'rotation' or .* or 'inpainting' or None$"),
        ({"steps": 3.5}, "'steps' is 3.5"),
        ({"steps": True}, "'steps' is True"),
        ({"lr": "fast"}, "'lr' is 'fast': it must be float"),
        ({"lr": False}, "'lr' is False: it must be float"),
        ({"strict": 1}, "'strict' is 1: it must be bool"),
        ({"source": 3}, "'source' is 3: it must be Path"),
        ({"resize": "crush"}, "'resize' is 'crush': it must be 'squash' or 'short'"),
        ({"precision": 32}, "'precision' is 32: it must be '32' or"),
    ],
    ids=str,
)
def test_wrong_names_and_types_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        config_from_options(options)
    assert "\n" not in str(caught.value)


COUNTS = ("steps", "batch_size", "devices", "num_nodes", "image_size", "crop", "min_images_per_class", "log_every")


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *((name, "at least 1") for name in (*COUNTS, "checkpoint_every")),
        *((name, "above 0") for name in ("lr", "backbone_lr", "clip_norm")),
    ],
)
def test_numbers_above_zero(name: str, bound: str) -> None:
    for bad in (0, -1):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} is {bad}.*{bound}"):
            config_from_options({name: bad})


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("weight_decay", -0.1),
        ("weight_decay", float("nan")),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("momentum", float("nan")),
        ("seed", -1),
        ("eval_every", -1),
        ("views", -1),
        ("views", 101),
    ],
)
def test_numbers_out_of_range(name: str, bad: float) -> None:
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} is {bad}"):
        config_from_options({name: bad})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "all", "tap": "layer3"}, "--tap has no effect with --train all"),
        ({"train": "head", "tap": "layer9"}, "--tap has no effect with --train head"),
        ({"compile": True, "spa": True}, "--compile has no effect with --spa"),
    ],
)
def test_choices_without_an_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_from_options(options)


def test_a_tap_cuts_for_the_tail_unless_the_machine_trains_everything() -> None:
    config = config_from_options({"tap": "layer3"})
    with pytest.raises(UserError, match=r"--tap has no effect with --train all.* use --train tail"):
        complete(config, has_gpu=True)
    assert complete(config, has_gpu=False).model.train == "tail"
    named = config_from_options({"tap": "layer3", "train": "tail"})
    assert complete(named, has_gpu=True).model.tap == "layer3"


def test_what_a_machine_trains_by_default() -> None:
    without, with_one = (complete(config_from_options({}), has_gpu=has_gpu) for has_gpu in (False, True))
    assert (without.model.backbone, without.model.train) == ("tiny_vit_5m_224.dist_in22k", "head")
    assert (without.training.regime, without.model.frame, without.model.views) == ("kept", "on", 0)
    assert (without.training.steps, without.output.checkpoint_every) == (100, 500)
    assert (with_one.model.backbone, with_one.model.train) == ("resnet50.tv_in1k", "all")
    assert (with_one.training.regime, with_one.model.frame) == ("published", "auto")  # measured when a run starts
    assert with_one.training.backbone_lr == pytest.approx(1e-3), "a tenth of the rate"
    tail = complete(config_from_options({"train": "tail"}), has_gpu=False)
    assert tail.training.backbone_lr == pytest.approx(1e-5), "a thousandth"
    assert (tail.training.regime, tail.model.views, tail.output.checkpoint_every) == ("kept", 0, 50)
    given = {"train": "tail", "views": 0, "frame": "off", "regime": "published"}
    kept = complete(config_from_options(given), has_gpu=False)
    assert (kept.model.views, kept.model.frame, kept.training.regime) == (0, "off", "published")


def test_numbers_on_the_edge_are_taken() -> None:
    edge = {"momentum": 0, "weight_decay": 0, "seed": 0, "eval_every": 0, "crop": 256, "steps": 1}
    assert check(config_from_options(edge)).data.crop == 256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not the config of a run"),
        ("[1, 2]", "is not the config of a run"),
        ("data: [", "is not the config of a run"),
        ("training: {method: ovanet}", "is not the config of a run.*'data'"),
        ("training: {method: ovanet}\ndata: []", "is not the config of a run"),
        ("training: {method: ovanet}\ndata: {}\nmodel: 3", "is not the config of a run"),
        ("training: {method: [ovanet]}", "is not the config of a run"),
        ("training: ovanet", "is not the config of a run"),
        ("training: {method: gone}", "no method 'gone'"),
    ],
)
def test_files_that_are_no_config(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_config(tmp_path / "config.yaml")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00data")
    with pytest.raises(UserError, match="is not the config of a run"):
        load_config(tmp_path / "config.yaml")


def test_a_config_with_an_unknown_option_is_refused(tmp_path: Path) -> None:
    save_config(config_from_options({}), tmp_path / "config.yaml")
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    content["training"]["warmup"] = 5
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"config\.yaml: there is no option 'warmup'"):
        load_config(tmp_path / "config.yaml")


def test_short_runs_have_a_schedule_of_their_own() -> None:
    def schedule(has_gpu: bool = False, **given: Any) -> tuple[Any, ...]:
        training = complete(config_from_options({"train": "tail", **given}), has_gpu).training
        return training.steps, training.lr, training.backbone_lr

    assert schedule(method="uan") == (300, 0.01, pytest.approx(1e-6))  # the backbone's is a thousandth of the published
    assert schedule(method="uan", steps=2000)[1] == 0.01 and schedule(method="uan", steps=2001)[1] == 0.001
    assert schedule(method="uan", has_gpu=True)[:2] == (20_000, 0.001)
    assert schedule(method="uan", lr=0.5) == (300, 0.5, pytest.approx(5e-4))
    assert schedule(method="iuan")[:2] == (1000, 0.01) and schedule(method="dcc")[:2] == (300, 0.001)
    assert schedule()[0] == schedule(has_gpu=True)[0] == 100, "heads are solved: few steps are enough"
    assert schedule(regime="published")[0] == 300 and schedule(regime="published", has_gpu=True)[0] == 10_000
    assert schedule(steps=7)[0] == 7


def test_an_option_that_a_config_lacks_has_its_default(tmp_path: Path) -> None:
    """The run may be older than the option."""
    given = config_from_options({"seed": 5, "steps": 7, "views": 2, "entropy_weight": 0.3})
    save_config(given, tmp_path / "config.yaml")
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del content["training"]["seed"], content["model"]["views"], content["method"]["entropy_weight"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    assert load_config(tmp_path / "config.yaml") == config_from_options({"steps": 7})


def test_the_method_of_a_config_is_known_even_if_only_another_script_has_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_config(config_from_options({"method": "dcc"}), path)
    path.write_text(path.read_text().replace("method: dcc", "method: mine"))
    assert saved_method(path) == "mine"
    for content in ("data: [", "version: 3\n"):
        path.write_text(content)
        with pytest.raises(UserError, match=r"config\.yaml is not the config of a run"):
            saved_method(path)


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.delenv("UNIDA_CACHE", raising=False)
    assert default_cache() == Path("/elsewhere/unida")
    monkeypatch.setenv("UNIDA_CACHE", "/mine")
    assert config_from_options({}).data.cache == Path("/mine")


def test_an_option_that_every_run_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Clashing:
        lr: float = 1.0

    monkeypatch.setitem(METHODS, "clashing", Card("clashing", "t", "p", "UniDA", Clashing, "nowhere:Nothing"))
    with pytest.raises(UserError, match="method 'clashing' has an option 'lr', as every run has"):
        config_from_options({"method": "clashing"})


def test_a_card_that_leads_nowhere_is_named() -> None:
    for code in ("nowhere:Nothing", "unida.errors:Nothing"):
        with pytest.raises(UserError, match=f"the card of method 'mine' says '{code}', which is not there"):
            Card("mine", "t", "p", "UniDA", object, code).load()


def test_the_fingerprint_is_of_what_is_computed_not_of_places() -> None:
    config = config_from_options({"source": "a", "target": "b", "out": "c"})
    moved = config_from_options({"source": "d", "target": "e", "out": "f", "cache": "g", "devices": 2})
    other = config_from_options({"source": "a", "target": "b", "out": "c", "seed": 1})
    assert fingerprint_of(config) == fingerprint_of(moved) != fingerprint_of(other)
