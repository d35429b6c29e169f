"""Who may import whom: packages are used in one direction, target labels stay with evaluation, and help comes fast.

A module is read, not run: every import in its text counts, also inside functions. Imports for type checkers alone do
not count.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

import unida

PACKAGE = Path(unida.__file__).parent

# From the bottom to the top. A package may import those in lower rows, and no others; the next table is narrower still.
ORDER = (
    ("errors",),
    ("support",),
    ("losses", "recipes"),
    ("data",),
    ("models",),
    ("clustering", "features", "pretext"),
    ("methods",),
    ("config",),
    ("answering",),
    ("training",),
    ("evaluation",),
    ("analysis",),
    ("runs",),
    ("export",),
    ("grids",),
    ("reports", "studies"),
    ("api",),
    ("serving",),
    ("unida",),  # the package's own __init__
    ("cli",),
    ("__main__",),
)
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "errors": (),
    "support": ("errors",),
    "losses": (),
    "recipes": (),
    "data": ("errors", "support"),
    "models": ("errors", "support", "losses"),
    "clustering": ("errors", "support"),
    "features": ("errors", "support", "recipes", "data", "models"),
    "pretext": ("errors", "support", "losses", "recipes", "data", "models"),
    "methods": ("errors", "support", "losses", "recipes", "models", "clustering", "pretext"),
    "config": ("errors", "support"),  # and LEAVES
    "answering": ("errors", "support", "losses", "data", "features", "methods"),
    "training": ("errors", "support", "recipes", "data", "features", "methods", "config"),
    "evaluation": ("errors", "support", "data", "methods", "answering"),
    "analysis": (
        *("errors", "support", "losses", "data", "models", "clustering", "features", "methods", "config"),
        *("answering", "training", "evaluation"),
    ),
    "runs": (
        *("errors", "support", "recipes", "data", "models", "features", "methods", "config"),
        *("answering", "training", "evaluation", "analysis"),
    ),
    "export": ("errors", "support", "data", "methods", "answering", "runs"),
    "grids": ("errors", "support", "data", "models", "methods", "config", "evaluation", "runs"),
    "reports": (
        *("errors", "support", "data", "features", "methods", "config", "answering", "training", "evaluation"),
        *("analysis", "runs", "grids"),
    ),
    "studies": (
        *("errors", "support", "data", "models", "clustering", "methods", "config", "training", "evaluation"),
        *("analysis", "runs", "grids"),
    ),
    "api": ("errors", "support", "data", "methods", "config", "answering", "evaluation", "runs", "export", "reports"),
    "serving": ("errors", "support", "data", "methods", "config", "answering", "runs"),
    "unida": ("errors", "evaluation", "api", "grids"),
    "cli": (
        *("errors", "support", "data", "models", "pretext", "methods", "config", "training", "analysis", "runs"),
        *("api", "grids", "export", "reports", "studies", "serving", "unida"),
    ),
    "__main__": ("cli",),
}

# Options and cards, without torch: `unida.config` puts them together, whatever package they lie in.
LEAVES = ("unida.*.options", "unida.methods", "unida.methods.card", "unida.methods.*_options", "unida.methods.listing")

# Imports that go upwards. Each has a reason; none may be added without one.
UPWARDS: set[tuple[str, str]] = set()

# What learns or answers must not even be able to see the truth.
BLIND = ("data", "models", "losses", "recipes", "features", "clustering", "pretext", "methods", "training", "answering")

SLOW = ("torch", "timm", "lightning_fabric", "torchvision", "torchmetrics")


class Import(NamedTuple):
    of: str  # module
    by: str
    at_once: bool  # when `by` is imported; otherwise in a function


def module_name(path: Path) -> str:
    """unida, unida.cli, unida.methods.spa.options."""
    parts = ("unida", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def package_of(module: str) -> str:
    """unida.methods.spa.options → methods; unida.cli → cli; unida → unida."""
    return module.split(".")[1] if "." in module else "unida"


def imports_in(text: str, by: str) -> list[Import]:
    """Every import of unida's modules in a module's text."""
    return list(_imports(ast.parse(text), by, at_once=True))


def _imports(node: ast.AST, by: str, at_once: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, by, at_once) for alias in node.names if is_ours(alias.name))
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{by} has a relative import"
        for alias in node.names:
            full = f"{node.module}.{alias.name}"  # of a module, or of a name in one
            of = full if full in MODULES else str(node.module)
            if is_ours(of):
                yield Import(of, by, at_once)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        inside: list[ast.AST] = list(node.orelse)
    else:
        inside = list(ast.iter_child_nodes(node))
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in inside:
        yield from _imports(child, by, at_once and not is_function)


def is_ours(module: str) -> bool:
    return module == "unida" or module.startswith("unida.")


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return [found for module, path in MODULES.items() for found in imports_in(path.read_text("utf-8"), module)]


def is_leaf(module: str) -> bool:
    return any(fnmatch(module, pattern) for pattern in LEAVES)


def reached_from(start: str, imports: list[Import]) -> dict[str, tuple[str, ...]]:
    """Every module that a module imports, directly or not, with the way there."""
    by: dict[str, list[str]] = {}
    for found in imports:
        by.setdefault(found.by, []).append(found.of)
    ways: dict[str, tuple[str, ...]] = {start: (start,)}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        for of in by.get(module, ()):
            if of not in ways:
                ways[of] = (*ways[module], of)
                waiting.append(of)
    return ways


# The reader of imports


EXAMPLE = """
from typing import TYPE_CHECKING
import numpy as np
import unida.errors
from unida.methods import METHODS, listing
from unidata import nothing

if TYPE_CHECKING:
    from unida.evaluation.truth import Truth
else:
    from unida.support import random

class Some:
    from unida import config

    def work(self):
        if True:
            from unida.data.pixels import Pixels
"""


def test_every_import_in_a_text_is_found() -> None:
    found = {(one.of, one.at_once) for one in imports_in(EXAMPLE, "unida.example")}
    assert found == {
        ("unida.errors", True),
        ("unida.methods", True),
        ("unida.methods.listing", True),
        ("unida.support.random", True),
        ("unida.config", True),
        ("unida.data.pixels", False),
    }


def test_the_packages_are_all_there(imports: list[Import]) -> None:
    assert {package_of(module) for module in MODULES} == set(ALLOWED)
    assert {one.of for one in imports} <= set(MODULES)
    assert len(imports) > 200


# Directions


def test_no_module_imports_itself_in_a_circle(imports: list[Import]) -> None:
    at_once = [one for one in imports if one.at_once]
    circles = []
    for one in at_once:
        ways = reached_from(one.of, at_once)
        if one.by in ways:
            circles.append(" → ".join((one.by, *ways[one.by])))
    assert not circles


def test_the_table_goes_downwards() -> None:
    height = {package: row for row, packages in enumerate(ORDER) for package in packages}
    assert set(height) == set(ALLOWED)
    for package, allowed in ALLOWED.items():
        assert all(height[other] < height[package] for other in allowed), package


def test_packages_import_only_what_the_table_allows(imports: list[Import]) -> None:
    refused = set()
    for one in imports:
        by, of = package_of(one.by), package_of(one.of)
        from_config = by == "config" and is_leaf(one.of)
        if by != of and of not in ALLOWED[by] and not from_config:
            refused.add((one.by, one.of))
    assert refused == UPWARDS


def test_leaves_import_only_leaves_and_what_lies_below(imports: list[Import]) -> None:
    """Or the help would wait for torch, and `unida.config` could import itself."""
    below = ("errors", "support")
    free_of_torch = ("unida.pretext.bins", "unida.evaluation.names")
    for one in imports:
        if is_leaf(one.by) and one.at_once:
            assert is_leaf(one.of) or package_of(one.of) in below or one.of in free_of_torch, one


# Target labels


def test_what_learns_or_answers_cannot_reach_the_targets_labels(imports: list[Import]) -> None:
    for module in MODULES:
        if package_of(module) in BLIND:
            ways = reached_from(module, imports)
            assert "unida.evaluation.truth" not in ways, " → ".join(ways["unida.evaluation.truth"])


def test_somebody_can(imports: list[Import]) -> None:
    """The test above would not fail if the module had another name."""
    assert "unida.evaluation.truth" in reached_from("unida.runs.pipeline", imports)


# Help and errors come at once


def loaded_by(code: str) -> str:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return finished.stdout.strip()


BEHIND_HELP_AND_ERRORS = (
    "unida",
    "unida.cli",
    "unida.config",
    "unida.runs.folder",
    "unida.methods.listing",
    "unida.models.listing",
    "unida.data.show",
    "unida.data.benchmarks",
    "unida.data.pairs",
    "unida.analysis.options",
    *("unida.grids.published", "unida.grids.start", "unida.grids.pages", "unida.grids.status"),
    "unida.studies.catalogue",
)


def test_modules_behind_help_and_errors_load_nothing_slow() -> None:
    """One after another, in one process; the last one does load torch, so that the test sees what is slow."""
    code = f"""
import importlib, json, sys
for module in {(*BEHIND_HELP_AND_ERRORS, "unida.losses.entropy")!r}:
    importlib.import_module(module)
    print(json.dumps([module, [name for name in {SLOW} if name in sys.modules]]))
"""
    slow = dict(json.loads(line) for line in loaded_by(code).splitlines())
    assert "torch" in slow.pop("unida.losses.entropy")
    assert slow == {module: [] for module in BEHIND_HELP_AND_ERRORS}


QUICK = (
    ["--help"],
    ["--version"],
    *([*verb.split(), "--help"] for verb in ("check", "adapt", "predict", "evaluate", "demo", "methods", "backbones")),
    ["report", "--help"],
    ["serve", "--help"],
    *([*verb.split(), "--help"] for verb in ("data list", "data verify", "data show")),
    *([*verb.split(), "--help"] for verb in ("analyze layers", "analyze complexity", "analyze clusters")),
    ["adapt", "--method", "dcc", "--help"],
    ["methods"],
    ["backbones"],
    ["data", "list"],
    ["adpat"],
    ["adapt"],
    ["adapt", "--stpes", "3"],
    ["adapt", "--steps", "many"],
    ["adapt", "--method", "ovnet"],
    ["adapt", "--source", "a", "--target", "b", "--out", "c", "--steps", "0"],
    ["adapt", "--source", "a", "--target", "b", "--out", "c", "--tap", "stem", "--train", "all"],
    ["adapt", "--source", "a", "--target", "b", "--out", "c", "--weights", "hub@"],
    ["adapt", "--source", "a", "--target", "b", "--out", "full"],
    ["adapt", "--benchmark", "office31", "--root", "a", "--pair", "amazon:moon", "--out", "c"],
    ["check", "--source", "a"],
    ["data", "verify", "office32", "a"],
    ["analyze", "layers", "--source", "a", "--target", "b", "--out", "c", "--words", "1"],
    ["analyze", "complexity", "--method", "ovnet"],
    ["analyze", "clusters"],
    ["analyze", "clusters", "full"],
    ["report"],
    ["study", "--help"],
    ["study", "openness", "--help"],
    ["study", "openness", "--source", "a", "--target", "b", "--out", "c"],
    ["report", "full"],
    ["discover", "--help"],
    ["discover", "full"],
    ["discover", "full", "--copy"],
    ["serve", "full"],
    ["serve", "full", "--port", "70000"],
    ["serve", "full", "--token", "short"],
)


def test_help_and_errors_about_options_load_nothing_slow(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    code = f"""
import contextlib, io, json, os, sys
from unida.cli import main
os.chdir({str(tmp_path)!r})
for words in {QUICK!r}:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([words, code or 0, err.getvalue(), [name for name in {SLOW} if name in sys.modules]]))
"""
    lines = [json.loads(line) for line in loaded_by(code).splitlines()]
    assert [words for words, *_ in lines] == list(QUICK)
    for words, status, err, slow in lines:
        assert not slow, words
        asks = words[-1] in ("--help", "--version", "methods", "backbones", "list")
        assert status == (0 if asks else 2), (words, err)
        assert err.count("\n") == (0 if asks else 1), (words, err)
