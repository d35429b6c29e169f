"""No import leads from what trains to what knows the target's labels."""

import ast
import importlib.util
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import unida
from unida.features.engines import OPENVINO
from unida.methods import METHODS
from unida.models.weights import LITE0_WHEEL

BEFORE_EVALUATION = ("answering", "clustering", "data", "features", "losses", "methods", "models", "pretext")
BEFORE_EVALUATION += ("recipes", "support", "training")
# Or some of their modules do.
KNOW_THE_TRUTH = ("analysis", "cli", "evaluation", "export", "grids", "reports", "runs", "serving", "studies")


def tree_of(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return ast.parse(Path(spec.origin).read_text())


def imports_of(module: str) -> set[str]:
    """The unida modules that a module imports, at any depth of its code, with the packages that hold them.

    A name from a package may be a module. "unida" itself is there if a module can reach the API through it.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None
    found: set[str] = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            found.update(names | {"unida"} if any(name.split(".")[0] == "unida" for name in names) else names)
        elif isinstance(node, ast.ImportFrom):
            package = module if spec.submodule_search_locations else module.rpartition(".")[0]
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = {f"{base}.{alias.name}" for alias in node.names}
            found.update(names)
            if base != "unida" or not all(map(_is_module, names)):
                found.add(base)
    found.update(".".join(name.split(".")[:2]) for name in list(found))
    return {name for name in found if name.split(".")[0] == "unida" and _is_module(name)}


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package: a name in a module
        return False


def modules_of(package: str) -> list[str]:
    """The package and all that it holds, packages in it too."""
    folder = Path(unida.__file__).parent / package
    return [f"unida.{package}", *(m.name for m in pkgutil.walk_packages([str(folder)], f"unida.{package}."))]


@pytest.mark.parametrize("package", BEFORE_EVALUATION)
def test_no_import_leads_from_training_to_evaluation(package: str) -> None:
    """Not directly, not through another module."""
    names = modules_of(package)
    assert len(names) > 1
    assert_no_way_to_the_truth(names)


def test_no_package_is_forgotten() -> None:
    packages = {m.name for m in pkgutil.iter_modules(unida.__path__) if m.ispkg}
    assert packages - {*KNOW_THE_TRUTH} == {*BEFORE_EVALUATION}
    assert {"unida.methods.spa.method", "unida.data.benchmarks.spec"} <= {*modules_of("methods"), *modules_of("data")}


def dynamic_imports(module: str) -> Iterator[str]:
    for node in ast.walk(tree_of(module)):
        name = getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))
        if name in ("import_module", "__import__", "exec", "run_module", "run_path"):
            yield name


def test_an_import_by_name_leads_to_methods_alone() -> None:
    """The walk does not see imports by name. They are of a method's class, and of other packages."""
    by_name = {m for package in BEFORE_EVALUATION for m in modules_of(package) if list(dynamic_imports(m))}
    assert by_name == {"unida.features.engines", "unida.methods.card", "unida.models.weights"}
    assert {card.code.partition(":")[0] for card in METHODS.values()} <= set(modules_of("methods"))
    assert not LITE0_WHEEL.startswith("unida") and not OPENVINO.startswith("unida")


def test_no_import_leads_from_the_choice_of_a_tap_or_frame_to_evaluation() -> None:
    """It is made before training, from images of the target, and steers it."""
    assert_no_way_to_the_truth(["unida.analysis.auto_tap", "unida.analysis.auto_frame"])
    with pytest.raises(AssertionError):
        assert_no_way_to_the_truth(["unida.analysis.tracking"])  # which looks on, and steers nothing


def assert_no_way_to_the_truth(names: list[str]) -> None:
    to_visit, reached = list(names), set(names)
    while to_visit:
        for name in imports_of(to_visit.pop()) - reached:
            reached.add(name)
            to_visit.append(name)
    assert not [name for name in reached if name.startswith(("unida.evaluation", "unida.api", "unida.cli"))]
    # These know the truth too; and the API can be reached through the package's own name.
    assert not reached & {"unida", "unida.runs.pipeline", "unida.runs.summary"}


def test_the_walk_finds_imports_of_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass if the walk saw nothing: here it sees what pipeline imports."""
    assert {"unida.evaluation.truth", "unida.evaluation.metrics"} <= imports_of("unida.runs.pipeline")
    for number, (line, found) in enumerate(
        {
            "from unida.evaluation import truth": "unida.evaluation.truth",
            "from unida.evaluation.truth import Truth": "unida.evaluation.truth",
            "import unida.evaluation.truth": "unida.evaluation.truth",
            "from unida.runs.options import TRACKED": "unida.runs",
            "from unida import api": "unida.api",
            "from unida import adapt": "unida",
            "import unida": "unida",
        }.items()
    ):
        (tmp_path / f"cheat{number}.py").write_text(f"def f():\n    {line}\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert found in imports_of(f"cheat{number}"), line
    assert "unida" not in imports_of("unida.config")  # which imports modules by their own names
    for number, line in enumerate(("importlib.import_module('unida.api')", "__import__('unida.api')")):
        (tmp_path / f"hidden{number}.py").write_text(f"import importlib\n{line}\n")
        assert list(dynamic_imports(f"hidden{number}"))
