"""Every option of a run, typed: the one truth for the command line, the Python API and the saved config.yaml.

Option names are unique across the groups, so the command line (`--batch-size 36`) and Python
(`unida.adapt(batch_size=36)`) need no group names.
"""

import dataclasses
import difflib
import functools
import math
import os
import typing
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from unida.errors import UserError
from unida.files import write_text
from unida.methods import METHODS
from unida.methods.spa_options import SPAOptions, flag, resolve

AUTO = "auto"  # of --tap and --spa.tap: measured when the run starts (unida.analysis.auto_tap)
TRACKED = ("pas", "ntr", "dis")  # the measures that --track knows


def default_cache() -> Path:
    """Where decoded images are kept: $UNIDA_CACHE, or the user's cache folder."""
    if "UNIDA_CACHE" in os.environ:
        return Path(os.environ["UNIDA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "unida"


def _shown(metavar: str, hint: str = "") -> Any:
    """How an option looks in the help: its placeholder, and what to say in place of "default: None"."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


@dataclass(frozen=True)
class DataOptions:
    source: Annotated[Path | None, _shown("DIR")] = None
    """Labelled images: one sub-folder per class."""
    target: Annotated[Path | None, _shown("DIR")] = None
    """Unlabelled images: any folder, flat or nested."""
    target_labels: bool = False
    """The target's sub-folders are its true classes: use them for evaluation, never for training."""
    benchmark: Annotated[str | None, _shown("NAME", "(see: unida data list)")] = None
    """A benchmark in place of the two folders."""
    root: Annotated[Path | None, _shown("DIR")] = None
    """The benchmark's folder."""
    pair: Annotated[str | None, _shown("SOURCE:TARGET", "(for instance amazon:dslr)")] = None
    """The benchmark's domains."""
    setting: str = "unida"
    """The benchmark's label sets: cda, pda, osda, unida, or a named variant such as osda:ros."""
    resize: Literal["squash", "short"] = "squash"
    """squash: to a square (OVANet); short: the short side, aspect kept (DCC)."""
    image_size: int = 256
    """Side in pixels that images are resized to and kept at."""
    crop: int = 224
    """Side in pixels of the crop that the network sees."""
    duplicates: Literal["error", "drop", "keep"] = "error"
    """Files with the same content, within or across the folders (benchmarks always keep them)."""
    min_images_per_class: int = 2
    """A source class with fewer images is an error."""
    strict: bool = False
    """Stop at the first image that cannot be read, instead of skipping and listing it."""
    cache: Path = field(default_factory=default_cache)
    """Where decoded images are kept between runs."""


@dataclass(frozen=True)
class ModelOptions:
    backbone: Annotated[str, _shown("NAME", "(default: tf_efficientnet_lite0, or resnet50.tv_in1k with a GPU)")] = (
        "auto"
    )
    """Any timm model."""
    weights: Annotated[str | None, _shown("FILE", "(default: pretrained, by the backbone's name)")] = None
    """Weights of the backbone from a local .safetensors or .pth file; "none" for random ones."""
    train: Annotated[
        Literal["auto", "all", "tail", "head"], _shown("all|tail|head", "(default: tail, or all with a GPU)")
    ] = "auto"
    """all: fine-tune everything; tail: freeze up to --tap, keep its features and train what follows, in minutes on a
    CPU; head: freeze the whole backbone."""
    tap: Annotated[str | None, _shown("NAME", "(default: before the backbone's last stage)")] = None
    """Where --train tail cuts the backbone. auto: by Definition 1 of the SPA paper, from a few hundred images and no
    target label; where a line tells the domains apart at every tap, as on Office-31, that is close to a guess."""
    views: int = 4
    """Random crops and mirrors of each image that --train tail and head keep features of."""
    feature_format: Literal["fp16", "bf16"] = "fp16"
    """Number format of kept features."""


@dataclass(frozen=True)
class TrainingOptions:
    method: str = "ovanet"
    """One of those that `unida methods` lists."""
    steps: Annotated[
        int | None, _shown("N", "(default: the method's own with a GPU, see: unida methods; 300 without)")
    ] = None
    """Training steps (OVANet's paper: 10,000; DCC's code: 3,000)."""
    batch_size: int = 36
    """Images of each domain in a step, over all processes (OVANet, DCC, UAN: 36)."""
    lr: Annotated[float | None, _shown("FLOAT", "(default: the method's own, see: unida methods)")] = None
    """Learning rate of new layers at the start."""
    backbone_lr: Annotated[float | None, _shown("FLOAT", "(default: a tenth of --lr)")] = None
    """Learning rate of the pretrained backbone at the start (OVANet and DCC: a tenth)."""
    momentum: float = 0.9
    """Nesterov momentum of SGD (OVANet: 0.9)."""
    weight_decay: float = 5e-4
    """L2 penalty (OVANet: 5e-4)."""
    clip_norm: Annotated[float | None, _shown("FLOAT", "(default: off)")] = None
    """Gradients are scaled down to this norm (the references do not clip)."""
    seed: int = 0
    """All randomness of the run comes from it."""
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    """Arithmetic of the network."""
    compile: bool = False
    """Compile the backbone with torch.compile (docs/performance.md measures it)."""
    accelerator: str = "auto"
    """cpu, cuda, mps, or whatever is there."""
    devices: int = 1
    """Processes on each machine, a device each."""
    num_nodes: int = 1
    """Machines; torchrun and SLURM are detected."""


@dataclass(frozen=True)
class OutputOptions:
    out: Annotated[Path | None, _shown("DIR")] = None
    """The run's folder, made anew."""
    resume: bool = False
    """Go on with the run in --out; ends as if it had never been interrupted."""
    log_every: int = 10
    """Steps between two lines of losses."""
    eval_every: Annotated[int, _shown("N", "(default: 0, at the end only)")] = 0
    """Steps between two evaluations: of the metrics, where the target has labels, and of what --track names."""
    track: Annotated[str | None, _shown("NAMES", "(for instance ntr,dis; default: none)")] = None
    """Measures of the features at every evaluation: pas (with --spa), ntr (where the target has labels), dis."""
    checkpoint_every: Annotated[int | None, _shown("N", "(default: 500 with a GPU, 50 without)")] = None
    """Steps between two checkpoints."""
    oracle_best: bool = False
    """Also report the best evaluation by target labels: an oracle, never comparable with a last step."""


@dataclass(frozen=True)
class Config:
    """A run's options in groups; `hyper` is the method's own, of the type `METHODS[method].Options`."""

    data: DataOptions
    model: ModelOptions
    training: TrainingOptions
    output: OutputOptions
    spa: SPAOptions
    hyper: Any


@functools.cache  # one class per method, or equal configs would not compare equal
def config_class(method: str) -> type[Config]:
    """`Config` with the named method's own options as a typed last group."""
    if method not in METHODS:
        raise UserError(f"there is no method {method!r}{_suggestion(method, METHODS)}; see: unida methods")
    options = METHODS[method].Options
    groups: list[tuple[str, Any, Any]] = [
        ("data", DataOptions, field(default_factory=DataOptions)),
        ("model", ModelOptions, field(default_factory=ModelOptions)),
        ("training", TrainingOptions, field(default_factory=lambda: TrainingOptions(method=method))),
        ("output", OutputOptions, field(default_factory=OutputOptions)),
        ("spa", SPAOptions, field(default_factory=SPAOptions)),
        ("hyper", options, field(default_factory=options)),
    ]
    made = dataclasses.make_dataclass("Config", groups, bases=(Config,), frozen=True)
    made.__doc__ = METHODS[method].title
    return made


def method_name(config: Config) -> str:
    """What a run trains, for people: ovanet, or ovanet+spa."""
    return config.training.method + ("+spa" if config.spa.spa else "")


def config_from_options(options: Mapping[str, Any]) -> Config:
    """Flat names and values, as in `unida.adapt(**options)`, to a checked config."""
    saved = config_to_resume(options.get("out"), bool(options.get("resume")))
    cls = config_class(str(options.get("method", saved.training.method if saved else TrainingOptions.method)))
    groups = _groups(cls)
    home = {f.name: group for group, kind in groups.items() for f in dataclasses.fields(kind)}
    values: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in options.items():
        if name not in home:
            raise UserError(f"there is no option {name!r}{_suggestion(name, home)}; see: unida adapt --help")
        values[home[name]][name] = value
    config = cls(**{group: _build(kind, values[group]) for group, kind in groups.items()})
    return check(config if saved is None else keep_saved(config, saved, options))


def keep_saved(config: Config, saved: Config, said: Container[str]) -> Config:
    """A config to resume with: what was not said stays as it was saved. Not where the method is another one."""
    if type(config.hyper) is not type(saved.hyper):
        return config
    groups = {}
    for group in _groups(type(config)):
        kept = {name: value for name, value in vars(getattr(saved, group)).items() if name not in said}
        groups[group] = dataclasses.replace(getattr(config, group), **kept)
    return dataclasses.replace(config, **groups)


def config_to_resume(out: str | os.PathLike[str] | None, resume: bool) -> Config | None:
    """The config of the run that --resume goes on with, if there is one."""
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
    """Refuse numbers that cannot work, by the option's name."""
    data, training, output = config.data, config.training, config.output
    positive = {
        "steps": training.steps,
        "batch_size": training.batch_size,
        "devices": training.devices,
        "num_nodes": training.num_nodes,
        "image_size": data.image_size,
        "views": config.model.views,
        "crop": data.crop,
        "min_images_per_class": data.min_images_per_class,
        "log_every": output.log_every,
        "checkpoint_every": output.checkpoint_every,
        "lr": training.lr,
        "backbone_lr": training.backbone_lr,
        "clip_norm": training.clip_norm,
    }
    for name, number in positive.items():
        if number is not None and not 0 < number < math.inf:
            raise UserError(f"{flag(name)} is {number}: it must be above 0, and finite")
    not_negative = {"seed": training.seed, "eval_every": output.eval_every, "weight_decay": training.weight_decay}
    for name, number in not_negative.items():
        if not 0 <= number < math.inf:
            raise UserError(f"{flag(name)} is {number}: it must not be below 0, and finite")
    if not 0 <= training.momentum < 1:
        raise UserError(f"--momentum is {training.momentum}: it must be 0 or more, and below 1")
    if data.crop > data.image_size:
        raise UserError(f"--crop {data.crop} is larger than --image-size {data.image_size}: lower it, or raise that")
    if output.oracle_best and not output.eval_every:
        raise UserError("--oracle-best compares evaluations: say how often with --eval-every N")
    resolve(config.spa)  # refuses what cannot work
    _refuse_lost_choice(config)
    _refuse_tracking(config)
    return config


def _refuse_lost_choice(config: Config) -> None:
    train = config.model.train
    if (tap := config.model.tap) is not None and train in ("all", "head"):
        raise UserError(
            f"--tap {tap} is lost with --train {train}, which cuts the backbone nowhere: leave it out, or --train tail"
        )
    if config.spa.spa_tap == AUTO and train == "head":
        raise UserError("--spa.tap auto is lost with --train head, which keeps pooled vectors only: leave it out")
    if config.training.compile and config.spa.spa:  # torch.compile covers the backbone's forward; words need its maps
        raise UserError("--compile is lost with --spa, which does not run the backbone as a whole: leave it out")


def tracked(output: OutputOptions) -> tuple[str, ...]:
    """The names in --track."""
    return tuple(name.strip() for name in output.track.split(",")) if output.track is not None else ()


def _refuse_tracking(config: Config) -> None:
    names = tracked(config.output)
    for name in names:
        if name not in TRACKED:
            raise UserError(f"--track names {name!r}{_suggestion(name, TRACKED)}; there are {', '.join(TRACKED)}")
    if names and not config.output.eval_every:
        raise UserError("--track measures at every evaluation: say how often with --eval-every N")
    if "pas" in names and not config.spa.spa:
        raise UserError("--track pas is lost without words to measure against: add --spa, or leave pas out")
    if "ntr" in names and not config.data.target_labels and config.data.benchmark is None:
        raise UserError("--track ntr needs to know the target's private images: add --target-labels, or leave ntr out")


def save_config(config: Config, path: Path) -> None:
    """Write the complete config, readable by a person."""
    write_text(path, config_to_yaml(config))


def config_to_yaml(config: Config) -> str:
    plain = {group: _plain(dataclasses.asdict(getattr(config, group))) for group in _groups(type(config))}
    return yaml.safe_dump(plain, sort_keys=False)


def config_from_yaml(text: str) -> Config:
    """An option that the text lacks has its default: the text may be older than the option."""
    plain = yaml.safe_load(text)
    cls = config_class(plain["training"]["method"])
    groups = {"spa": {}, **plain}  # which is newer than some files; without another group it is no config
    return cls(**{group: _build(kind, groups[group]) for group, kind in _groups(cls).items()})


def load_config(path: Path) -> Config:
    """Read a config back; a key that is unknown is an error that names it."""
    try:
        return config_from_yaml(path.read_text(encoding="utf-8"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not the config of a run: {error!r}") from error


def flat_options(config: Config) -> dict[str, Any]:
    """Every option and its value, without groups."""
    return {name: value for group in _groups(type(config)) for name, value in vars(getattr(config, group)).items()}


def _groups(cls: type[Config]) -> dict[str, type[Any]]:
    return {f.name: typing.cast(type[Any], f.type) for f in dataclasses.fields(cls)}


def _build(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """A group from plain values: checks names and types, turns strings into paths."""
    hints = typing.get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise UserError(f"there is no option {name!r}{_suggestion(name, hints)}")
    return kind(**{name: _converted(name, value, hints[name]) for name, value in values.items()})


def _converted(name: str, value: Any, hint: Any) -> Any:
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
    raise UserError(f"option {name!r} is {value!r}: it must be {allowed}")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def _suggestion(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
