"""Every option of a run, typed: one definition for the command line, the Python API and the saved config.yaml.

Each group of options lives with its owner; here they are put together. Option names are unique across the groups, so
the command line (`--batch-size 36`) and Python (`unida.adapt(batch_size=36)`) need no group names. Nothing here imports
torch, so help and errors about options appear at once.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import typing
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from unida.answering.options import AnsweringOptions
from unida.data.options import DataOptions
from unida.errors import UserError
from unida.methods import METHODS, Card
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.options import (
    AUTO,
    KEPT,
    NO_WEIGHTS,
    PUBLISHED,
    ModelOptions,
    TrainMode,
    default_backbone,
    pinned_revision,
)
from unida.runs.options import OutputOptions
from unida.support.files import write_text
from unida.support.options import LARGEST_INTEGER, flag
from unida.support.suggest import did_you_mean
from unida.training.options import TrainingOptions


@dataclass(frozen=True)
class Config:
    """A run's options in groups; `method` holds the method's own, of the type `METHODS[name].Options`."""

    data: DataOptions
    model: ModelOptions
    training: TrainingOptions
    answering: AnsweringOptions
    output: OutputOptions
    spa: SPAOptions
    method: Any


def config_class(method: str) -> type[Config]:
    """`Config` with the named method's own options as a typed last group."""
    if method not in METHODS:
        raise UserError(
            f"there is no method {method!r}{did_you_mean(method, METHODS)}; see: unida methods. Only the script that "
            "defines a method of your own knows it"
        )
    return _config_class_of(METHODS[method])


@functools.cache  # one class per card, or equal configs would not compare equal
def _config_class_of(card: Card) -> type[Config]:
    shared = {
        "data": DataOptions,
        "model": ModelOptions,
        "training": TrainingOptions,
        "answering": AnsweringOptions,
        "output": OutputOptions,
    }
    kinds: dict[str, type[Any]] = {**shared, "spa": SPAOptions, "method": card.Options}
    taken = {field.name for kind in (*shared.values(), SPAOptions) for field in dataclasses.fields(kind)}
    if clash := sorted(taken & {field.name for field in dataclasses.fields(card.Options)}):
        raise UserError(f"method {card.name!r} has an option {clash[0]!r}, as every run has: give it another name")
    defaults: dict[str, Callable[[], Any]] = {**kinds, "training": lambda: TrainingOptions(method=card.name)}
    groups = [(name, kind, field(default_factory=defaults[name])) for name, kind in kinds.items()]
    made = dataclasses.make_dataclass("Config", groups, bases=(Config,), frozen=True)
    made.__doc__ = card.title
    return made


def method_name(config: Config) -> str:
    """Name of what a run trains, for people: ovanet, or ovanet+spa."""
    return config.training.method + ("+spa" if config.spa.spa else "")


def config_from_options(options: Mapping[str, Any]) -> Config:
    """A checked config from flat names and values, as in `unida.adapt(**options)`."""
    saved = config_to_resume(options.get("out"), bool(options.get("resume")))
    cls = config_class(str(options.get("method", saved.training.method if saved else TrainingOptions.method)))
    groups = _groups(cls)
    home = {f.name: group for group, kind in groups.items() for f in dataclasses.fields(kind)}
    values: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in options.items():
        if name not in home:
            raise UserError(f"there is no option {name!r}{did_you_mean(name, home)}; see: unida adapt --help")
        values[home[name]][name] = value
    config = cls(**{group: _build(kind, values[group]) for group, kind in groups.items()})
    return check(config if saved is None else keep_saved(config, saved, options))


def keep_saved(config: Config, saved: Config, given: Container[str]) -> Config:
    """A config to resume with: options that were not given keep their saved values, unless the method has changed.

    Options on how to answer are given anew as a whole: they exclude each other, and a flag cannot be taken back.
    """
    if type(config.method) is not type(saved.method):
        return config
    groups = {}
    for group in _groups(type(config)):
        if group == "answering" and any(name in given for name in vars(config.answering)):
            continue
        kept = {name: value for name, value in vars(getattr(saved, group)).items() if name not in given}
        groups[group] = dataclasses.replace(getattr(config, group), **kept)
    return dataclasses.replace(config, **groups)


def config_to_resume(out: str | os.PathLike[str] | None, resume: bool) -> Config | None:
    """The config of the run that --resume continues, if there is one."""
    saved = Path(out) / "config.yaml" if resume and isinstance(out, str | os.PathLike) else None
    return load_config(saved) if saved is not None and saved.exists() else None


def method_options(method: str, values: Mapping[str, Any]) -> Any:
    """A method's own options from plain values."""
    return _build(METHODS[method].Options, values)


def spa_options(values: Mapping[str, Any]) -> SPAOptions:
    """SPA's options from plain values."""
    options: SPAOptions = _build(SPAOptions, values)
    return options


def check(config: Config) -> Config:
    """Refuse numbers and combinations that cannot work. The error names the option."""
    for name, value in flat_options(config).items():
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise UserError(f"{flag(name)} is {value}: it must be at most {LARGEST_INTEGER:,}")
    for group in (config.data, config.model, config.training, config.answering, config.output, config.method):
        if hasattr(group, "check"):  # a method's own options need not have one
            group.check()
    resolve(config.spa)  # refuses what cannot work
    _refuse_combinations(config)
    return config


def _refuse_combinations(config: Config) -> None:
    """Options of different groups that exclude each other."""
    card = METHODS[config.training.method]
    if config.model.train not in (AUTO, *card.trains):
        modes = " or ".join(card.trains)
        raise UserError(f"{card.name} cannot work with --train {config.model.train}: use --train {modes}")
    if config.training.compile and config.spa.spa:  # torch.compile covers the backbone's forward; words need its maps
        raise UserError("--compile has no effect with --spa, which does not run the backbone as a whole: leave it out")
    if "pas" in config.output.tracked and not config.spa.spa:
        raise UserError("--track pas needs SPA's words: add --spa, or leave pas out")
    has_labels = config.data.target_labels or config.data.benchmark is not None
    if "ntr" in config.output.tracked and not has_labels:
        raise UserError("--track ntr needs the target's labels: add --target-labels, or leave ntr out")


def complete(config: Config, has_gpu: bool) -> Config:
    """Fill in the defaults that depend on the machine, so that a resumed run keeps them; make paths absolute."""
    data, model, training, output = config.data, config.model, config.training, config.output
    paths: dict[str, Any] = {
        name: Path(path).absolute()
        for name in ("source", "target", "root", "cache")
        if (path := getattr(data, name)) is not None
    }
    card = METHODS[training.method]
    without_gpu: TrainMode = "head" if model.tap is None else "tail"  # a tap is where to cut for the tail
    by_default: TrainMode = "all" if has_gpu else without_gpu
    by_default = by_default if by_default in card.trains else card.trains[-1]
    train = model.train if model.train != AUTO else by_default
    regime = training.regime if training.regime != AUTO else PUBLISHED if train == "all" else KEPT
    of_method = card.steps if has_gpu else card.cpu_steps
    steps = training.steps or (regime == KEPT and card.kept_steps) or of_method
    lr = training.lr if training.lr is not None else card.rate(steps)
    share = 0.1 if regime == PUBLISHED else 0.001  # why so small: docs/studies/features.md
    weights = model.weights
    if weights is not None and weights != NO_WEIGHTS and pinned_revision(weights) is None:
        weights = str(Path(weights).absolute())
    completed = replace(
        config,
        data=replace(data, **paths),
        model=replace(
            model,
            backbone=default_backbone(has_gpu) if model.backbone == AUTO else model.backbone,
            weights=weights,
            train=train,
            views=model.views if model.views is not None else 0 if regime == KEPT else 4,
            frame="on" if model.frame == AUTO and regime == KEPT else model.frame,
        ),
        training=replace(
            training,
            regime=regime,
            steps=steps,
            lr=lr,
            backbone_lr=training.backbone_lr if training.backbone_lr is not None else share * (training.lr or card.lr),
        ),
        spa=resolve(config.spa) if config.spa.spa else config.spa,
        output=replace(
            output,
            checkpoint_every=output.checkpoint_every or (500 if has_gpu or train == "head" else 50),
            resume=False,
        ),
    )
    return check(completed)  # the machine's defaults may not fit the user's choices


def fingerprint_of(config: Config) -> str:
    """Identifies what a run trains, not where it runs: a model or checkpoint names its run with it."""
    places = ("source", "target", "root", "out", "resume", "cache", "accelerator", "devices", "num_nodes", "engine")
    left_out = {*places, *vars(config.answering)}  # how images are answered changes no weight
    if config.spa.spa_task in (None, "count"):
        left_out.add("spa_task")  # runs that are older than the option did the same
    if config.spa.spa_share is None:
        left_out.add("spa_share")  # as above
    left_out |= {name for name in ("source_without", "target_without") if getattr(config.data, name) is None}
    plain = {name: str(value) for name, value in flat_options(config).items() if name not in left_out}
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=8).hexdigest()


def save_config(config: Config, path: Path) -> None:
    """Write the complete config, readable by a person."""
    write_text(path, config_to_yaml(config))


def config_to_yaml(config: Config) -> str:
    plain = {group: _plain(dataclasses.asdict(getattr(config, group))) for group in _groups(type(config))}
    return yaml.safe_dump(plain, sort_keys=False)


def config_from_yaml(text: str) -> Config:
    """A config from text. A missing option has its default: the text may be older than the option."""
    plain = yaml.safe_load(text)
    cls = config_class(plain["training"]["method"])
    plain = {"answering": {}, **plain}  # a group that older runs do not have
    return cls(**{group: _build(kind, plain[group]) for group, kind in _groups(cls).items()})


def load_config(path: Path) -> Config:
    """Read a saved config; the error for an unknown key names it."""
    with _naming(path):
        return config_from_yaml(path.read_text(encoding="utf-8"))


def saved_method(path: Path) -> str:
    """The name of the method in a saved config. It may be one that only another script knows."""
    with _naming(path):
        return str(yaml.safe_load(path.read_text(encoding="utf-8"))["training"]["method"])


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """The error names the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the config of a run: {error!r}") from error


def flat_options(config: Config) -> dict[str, Any]:
    """Every option and its value, without groups."""
    return {name: value for group in _groups(type(config)) for name, value in vars(getattr(config, group)).items()}


def _groups(cls: type[Config]) -> dict[str, type[Any]]:
    return {f.name: typing.cast(type[Any], f.type) for f in dataclasses.fields(cls)}


def _build(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a group from plain values: check names and types, turn strings into paths."""
    hints = typing.get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise UserError(f"there is no option {name!r}{did_you_mean(name, hints)}")
    return kind(**{name: converted(name, value, hints[name]) for name, value in values.items()})


def converted(name: str, value: Any, hint: Any) -> Any:
    """The value as its type wants it, or a UserError that says what an option may be."""
    options = typing.get_args(hint) if typing.get_origin(hint) not in (None, Literal) else (hint,)
    for option in options:
        if typing.get_origin(option) is Literal and value in typing.get_args(option):
            return value
        if option is type(None) and value is None:
            return None
        if option is Path and isinstance(value, str | os.PathLike):
            return Path(value)
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if option in (str, bool) and isinstance(value, option):
            return value
        if option is str and isinstance(value, os.PathLike):
            return os.fspath(value)
    allowed = " or ".join(
        repr(choice) if typing.get_origin(option) is Literal else getattr(option, "__name__", str(option))
        for option in options
        for choice in (typing.get_args(option) if typing.get_origin(option) is Literal else (None,))
    )
    raise UserError(f"option {name!r} is {value!r}: it must be {allowed.replace('NoneType', 'None')}")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
