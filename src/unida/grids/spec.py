"""A grid as data: rows, pairs, settings, seeds and shared options. Read and checked without torch."""

import dataclasses
import importlib
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unida.data.benchmarks import load_benchmark
from unida.data.options import default_cache
from unida.errors import UserError
from unida.grids.published import load_published, spec_text
from unida.methods import METHODS
from unida.support.plainyaml import PlainYaml
from unida.support.suggest import did_you_mean

# Set by the grid itself, for each run.
RESERVED = ("out", "resume", "seed", "setting", "pair", "source", "target", "benchmark", "root")
PATHS = ("weights", "cache")  # options of a run that may name a file; they are relative to the spec
SMALLEST_SEED = 0

Options = dict[str, Any]  # of `unida adapt`, by their Python names


@dataclass(frozen=True)
class Grid:
    """All runs of rows × (pairs × settings, or folders) × seeds."""

    title: str
    rows: Mapping[str, Options]
    seeds: Sequence[int]
    options: Options  # of every run; a row's own options win
    benchmark: str | None = None
    root: str | None = None
    pairs: Sequence[str] = ()  # of the benchmark, with its full names
    settings: Sequence[str] = ()
    folders: Mapping[str, Options] = dataclasses.field(default_factory=dict)  # name → source, target, target_labels
    published: str | None = None  # table of the paper that this one stands beside
    methods: Sequence[str] = ()  # Python files that define methods of one's own
    skipped: Sequence[str] = ()  # rows whose method does not exist here

    def chosen(
        self,
        rows: Sequence[str] | None = None,
        pairs: Sequence[str] | None = None,
        settings: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> "Grid":
        """The part of the grid that these names ask for; None takes all."""
        changes: dict[str, Any] = {}
        if rows is not None:
            changes["rows"] = {name: self.rows[_known("row", name, self.rows)] for name in rows}
        if pairs is not None and self.benchmark is None:
            changes["folders"] = {name: self.folders[_known("folders", name, self.folders)] for name in pairs}
        elif pairs is not None:
            changes["pairs"] = [_known("pair", pair, self.pairs) for pair in _pairs(self.benchmark, pairs)]
        if settings is not None:
            changes["settings"] = _unique([_known("setting", name, self.settings) for name in settings], "settings")
        if seeds is not None:
            changes["seeds"] = _seeds(list(seeds), "--seeds")
        return dataclasses.replace(self, **changes)

    def to_yaml(self) -> str:
        """The spec with all that was left out filled in."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)


def read_spec(path: Path, root: Path | None = None, check_folders: bool = True) -> Grid:
    """The grid that a YAML file describes. Paths in it are relative to the file.

    Args:
        check_folders: refuse folders of images that are not there. A grid that has run can be read without them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return parse_spec(text, str(path), path.parent.absolute(), root, check_folders=check_folders)


def paper_spec(name: str, root: Path | None) -> Grid:
    """A grid of the paper. Rows of methods that do not exist here are left out, and named in `skipped`."""
    return parse_spec(spec_text(name), f"--paper {name}", Path.cwd(), root, skip_missing=True)


def parse_spec(
    text: str,
    name: str,
    folder: Path,
    root: Path | None = None,
    skip_missing: bool = False,
    check_folders: bool = True,
) -> Grid:
    """Args:
    name: of the spec, for errors.
    folder: that its paths are relative to.
    root: of the benchmark; wins over the spec's own.
    """
    try:
        content = yaml.load(text, Loader=PlainYaml)
    except yaml.YAMLError as error:
        raise UserError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    return grid_from(content, name, folder, root, skip_missing, check_folders)


def grid_from(
    content: Any,
    name: str = "spec",
    folder: Path | None = None,
    root: Path | None = None,
    skip_missing: bool = False,
    check_folders: bool = True,
) -> Grid:
    """The grid that plain values describe: those of a YAML file, or of `unida.grid`."""
    folder = folder or Path.cwd()
    try:
        grid = _grid(_mapping(content, "a spec"), folder, root, skip_missing)
        if check_folders:
            _refuse_missing_folders(grid)
        return grid
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def _grid(content: dict[str, Any], folder: Path, root: Path | None, skip_missing: bool) -> Grid:
    known = [field.name for field in dataclasses.fields(Grid) if field.name != "skipped"]
    for key in content:
        if key not in (*known, "skipped"):
            raise UserError(f"there is no key {key!r}{did_you_mean(str(key), known)}; a spec has {', '.join(known)}")
    methods = [str(folder / file) for file in _list(content.get("methods"), "methods")]
    load_methods(methods)
    rows = {str(row): run_options(options, f"row {row!r}", folder) for row, options in _rows(content).items()}
    skipped = list(map(str, _list(content.get("skipped"), "skipped")))
    if skip_missing:
        missing = [row for row, options in rows.items() if options.get("method", "ovanet") not in METHODS]
        skipped, rows = [*skipped, *missing], {row: options for row, options in rows.items() if row not in missing}
    if not rows:
        raise UserError("it has no rows: a row is a name and options of unida adapt, as in 'ovanet: {method: ovanet}'")
    _refuse_alike(rows)
    if content.get("published") not in (None, "auto", "none"):
        load_published(str(content["published"]))  # refuses a name that does not exist, now and not after all runs
    options = {"cache": str(default_cache().absolute()), **run_options(content.get("options"), "options", folder)}
    plain: dict[str, Any] = {
        "title": str(content.get("title") or ""),
        "rows": rows,
        "seeds": _seeds(_list(content.get("seeds", [0]), "seeds"), "seeds"),
        "options": options,
        "published": content.get("published"),
        "methods": methods,
        "skipped": skipped,
    }
    if content.get("folders"):
        for key in ("benchmark", "root", "pairs", "settings"):
            if content.get(key) or (key == "root" and root is not None):
                raise UserError(f"{key} and folders exclude each other: give folders, or a benchmark")
        folders = _mapping(content["folders"], "folders")
        _refuse_alike(folders)
        return Grid(**plain, folders={str(key): _two_folders(key, both, folder) for key, both in folders.items()})
    if not content.get("benchmark"):
        raise UserError("it names no data: give benchmark (and --root DIR), or folders")
    benchmark = load_benchmark(str(content["benchmark"]))
    every = [f"{a.name}:{b.name}" for a, b in itertools.permutations(benchmark.domains, 2)]
    settings = [str(setting) for setting in _list(content.get("settings", ["unida"]), "settings")]
    for setting in settings:
        benchmark.split(setting)
    where = root.absolute() if root is not None else None
    if where is None and content.get("root"):
        where = _path(content["root"], "root", folder)
    if where is None:
        raise UserError(f"--root DIR is missing: the folder that holds {benchmark.title}")
    return Grid(
        **plain,
        benchmark=benchmark.name,
        root=str(where),
        pairs=_pairs(benchmark.name, _list(content.get("pairs", every), "pairs")),
        settings=_unique(settings, "settings"),
    )


def _refuse_missing_folders(grid: Grid) -> None:
    for name, both in grid.folders.items():
        for key in ("source", "target"):
            if not Path(both[key]).is_dir():
                raise UserError(f"folders {name!r}: {key} {both[key]} is not a folder")
    if grid.root is not None and not Path(grid.root).is_dir():
        raise UserError(f"--root {grid.root} is not a folder: give the one that holds {grid.benchmark}")


def load_methods(files: Sequence[str]) -> None:
    """Import Python files that add their methods to METHODS."""
    for file in files:
        path = Path(file)
        if not path.is_file():
            raise UserError(f"methods: {path} is not a file")
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        try:
            importlib.import_module(path.stem)
        except Exception as error:
            raise UserError(f"methods: {path} cannot be imported ({type(error).__name__}: {error})") from error


def _rows(content: dict[str, Any]) -> dict[str, Any]:
    return _mapping(content.get("rows") or {}, "rows")


def run_options(given: Any, where: str, folder: Path) -> Options:
    """Options by their Python names: batch-size and spa.preset are read as batch_size and spa_preset."""
    options: Options = {}
    for given_name, value in _mapping(given or {}, where).items():
        name = re.sub("[-.]", "_", str(given_name))
        if name in options:
            raise UserError(f"{where} has {name!r} twice: leave one out")
        options[name] = _number(value)
    for name in options:
        if name in RESERVED:
            raise UserError(f"{where} has {name!r}, which the grid sets for each run: leave it out")
    for name in PATHS:
        value = options.get(name)
        if isinstance(value, str | os.PathLike) and (name == "cache" or (folder / value).exists()):
            options[name] = str(folder / Path(value).expanduser())
    return options


def _number(value: Any) -> Any:
    """YAML takes 5e-4 for a word: it wants 5.0e-4."""
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", value)
    return float(value) if is_number else value


def _two_folders(name: Any, given: Any, folder: Path) -> Options:
    both = _mapping(given, f"folders {name!r}")
    for key in both:
        if key not in ("source", "target", "target_labels"):
            raise UserError(f"folders {name!r} has {key!r}: it takes source, target and target_labels")
    for key in ("source", "target"):
        if key not in both:
            raise UserError(f"folders {name!r} has no {key}: give two folders of images")
    paths = {key: _path(both[key], f"folders {name!r}: {key}", folder) for key in ("source", "target")}
    return {**{key: str(path) for key, path in paths.items()}, "target_labels": both.get("target_labels", False)}


def _path(value: Any, what: str, folder: Path) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"{what} is {value!r}: it must be a path")
    return folder / Path(value).expanduser()


def _pairs(benchmark: str | None, pairs: Sequence[Any]) -> list[str]:
    """Full names: A:D → amazon:dslr."""
    assert benchmark is not None
    domains = load_benchmark(benchmark)
    return _unique([":".join(domains.parse_pair(str(pair))) for pair in pairs], "pairs")


def _seeds(seeds: list[Any], where: str) -> list[int]:
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < SMALLEST_SEED:
            raise UserError(f"{where} has {seed!r}: a seed is a whole number, 0 or more")
    return _unique(seeds, where)


def _refuse_alike(names: Mapping[Any, Any]) -> None:
    """Two names that give one folder."""
    for a, b in itertools.combinations(names, 2):
        if folder_part(str(a)) == folder_part(str(b)):
            raise UserError(f"{a!r} and {b!r} would share the folder {folder_part(str(a))!r}: rename one of them")


def folder_part(name: str) -> str:
    """The name as part of a folder's name: letters, digits and + . _ stay, all else is a hyphen."""
    return re.sub(r"[^\w.+]+", "-", name).strip("-.").lower() or "row"


def _known(what: str, name: str, names: Sequence[str] | Mapping[str, Any]) -> str:
    if name not in names:
        raise UserError(f"the grid has no {what} {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}")
    return name


def _mapping(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UserError(f"{what} must be names with values, not {given!r}")
    return dict(given)


def _list(given: Any, what: str) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list | tuple | range):
        raise UserError(f"{what} must be a list, as in [a, b], not {given!r}")
    return list(given)


def _unique(values: list[Any], what: str) -> list[Any]:
    if not values:
        raise UserError(f"{what} is empty: give at least one")
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{what} has {value!r} twice: leave one out")
    return values
