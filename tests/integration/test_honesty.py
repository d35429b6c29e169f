"""Target labels cannot reach training: there is no way from them to it, and no trace of them in the weights."""

import ast
import dataclasses
import importlib.util
import json
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import adapt_arguments, all_weights, last_step, lines_of, model_hash, run_here
from torch import Tensor

import unida
from unida.config import config_from_options
from unida.data import domains
from unida.data.benchmarks import Benchmark, load_benchmark
from unida.data.benchmarks.spec import Split
from unida.data.domains import Target, open_domains
from unida.data.folders import scan
from unida.data.glyphs import GlyphFolders, draw, write_glyphs
from unida.data.settings import LabelSets
from unida.evaluation.metrics import open_set_metrics
from unida.methods import METHODS
from unida.methods.base import SourceBatch, TargetBatch
from unida.methods.ovanet import OVANet
from unida.recipes.mosaic import PretextBatch
from unida.runs.summary import write_metrics

BEFORE_EVALUATION = ("data", "losses", "methods", "models", "pretext", "training")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("honesty") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=2, per_class=3, size=40)


def renamed(target: Path, out: Path, names: dict[str, str]) -> Path:
    """A copy of the target in which classes have other names, and files too."""
    for i, path in enumerate(sorted(target.rglob("*.png"), reverse=True)):
        name = names[path.parent.name]
        (out / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / name / f"{i:02}-{name}.png")
    return out


def renamings(folders: GlyphFolders) -> dict[str, dict[str, str]]:
    names = [*folders.shared, *folders.target_private]
    return {
        "rotated": dict(zip(names, [*names[1:], names[0]], strict=True)),  # known becomes unknown and back
        "strangers": {name: f"zz{i}" for i, name in enumerate(reversed(names))},  # all unknown, in another order
        "one": dict.fromkeys(names, folders.source_private[0]),  # all of one class, of the source's own
    }


def train(source: Path, target: Path, out: Path, **changes: Any) -> Path:
    assert run_here(adapt_arguments(source, target, out, out.with_name(f"cache of {out.name}"), **changes)) == 0
    return out


def train_lines(run: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(run) if line["kind"] == "train"]


def assert_same_weights(run: Path, other: Path) -> None:
    assert model_hash(run) == model_hash(other)
    ours, theirs = all_weights(run), all_weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert train_lines(run) == train_lines(other)


SPA = {"spa": True, "spa.vocabulary": 16, "spa.pretext": "on", "spa.pool": 64, "spa.bins": "auto"}


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({"train": "all"}, id="all"),
        pytest.param({"train": "tail"}, id="tail"),
        pytest.param({"train": "all", **SPA}, id="all with SPA"),
        pytest.param({"train": "tail", **SPA, "spa.preset": "paper"}, id="tail with SPA"),
    ],
)
def test_names_of_target_folders_change_no_weight(
    folders: GlyphFolders, tmp_path: Path, choices: dict[str, Any]
) -> None:
    options = {"eval_every": 3, "oracle_best": True, **choices}
    first = train(folders.source, folders.target, tmp_path / "first", **options)
    results = [last_step(first)]
    for how, names in renamings(folders).items():
        target = renamed(folders.target, tmp_path / how / "target", names)
        run = train(folders.source, target, tmp_path / how / "run", **options)
        assert_same_weights(run, first)
        results.append(last_step(run))
    assert all(result != results[0] for result in results[1:])  # evaluation did read the names


def test_a_target_without_any_folders_changes_no_weight(folders: GlyphFolders, tmp_path: Path) -> None:
    first = train(folders.source, folders.target, tmp_path / "first")
    flat = tmp_path / "flat"
    flat.mkdir()
    for i, path in enumerate(folders.target.rglob("*.png")):
        shutil.copyfile(path, flat / f"{i}.png")
    assert_same_weights(train(folders.source, flat, tmp_path / "second", target_labels=None), first)


def test_the_order_of_target_files_does_not_depend_on_names(folders: GlyphFolders, tmp_path: Path) -> None:
    digests = [file.digest for file in scan(folders.target)[0]]
    by_name = [file.digest for file in sorted(scan(folders.target)[0], key=lambda file: file.relative)]
    assert digests != by_name
    for how, names in renamings(folders).items():
        copy = renamed(folders.target, tmp_path / how, names)
        assert [file.digest for file in scan(copy)[0]] == digests
        options = config_from_options({"source": folders.source, "target": copy, "cache": tmp_path / "cache"}).data
        assert [file.digest for file in open_domains(options, visible=False)[1].pixels.files] == digests


CLASSES = ("back_pack", "bike", "calculator", "headphones", "keyboard")


def office(label_sets: LabelSets) -> Benchmark:
    """Office-31 with label sets of our own."""
    return dataclasses.replace(load_benchmark("office31"), splits={"unida": Split(label_sets, "test")})


def draw_office(root: Path, target_folders: dict[str, str]) -> None:
    """Three source classes; three target classes, whose pictures lie in folders named as told."""
    for folder, domain, names in (("amazon", "flat", CLASSES[:3]), ("dslr", "photo", tuple(target_folders))):
        for name in names:
            shown = target_folders[name] if folder == "dslr" else name
            (root / folder / shown).mkdir(parents=True)
            for i in range(3):
                glyph = {"back_pack": "star", "bike": "house", "calculator": "heart", "headphones": "key"}[name]
                draw(glyph, domain, seed=0, size=40, number=i).save(root / folder / shown / f"{i}.png")


OFFICE_CASES = {
    "permuted": (LabelSets(CLASSES[1::-1], CLASSES[2:3], CLASSES[3:4]), {}),
    "other private class": (LabelSets(CLASSES[:2], CLASSES[2:3], CLASSES[4:]), {"headphones": "keyboard"}),
    "all shared": (LabelSets(CLASSES[:3]), {"headphones": "calculator"}),
    "other shared": (LabelSets(CLASSES[1:3], CLASSES[:1], CLASSES[3:4]), {"back_pack": "calculator"}),
}


@pytest.mark.parametrize("case", OFFICE_CASES)
def test_label_sets_of_a_benchmark_change_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The same images under other label sets: which classes are shared is a target label too."""
    runs = []
    true = {name: name for name in ("back_pack", "bike", "headphones")}
    plain = LabelSets(CLASSES[:2], CLASSES[2:3], CLASSES[3:4])
    label_sets, names = OFFICE_CASES[case]
    for i, (sets, shown) in enumerate([(plain, true), (label_sets, {**true, **names})]):
        root = tmp_path / f"office{i}"
        draw_office(root, shown)
        monkeypatch.setattr(domains, "load_benchmark", lambda name, sets=sets: office(sets))
        given = {"benchmark": "office31", "root": root, "pair": "amazon:dslr", "target_labels": None}
        runs.append(train(None, None, tmp_path / f"run{i}", **given))  # type: ignore[arg-type]
    assert_same_weights(*runs)


def test_a_target_batch_and_a_target_have_no_labels() -> None:
    assert TargetBatch._fields == ("images", "indices", "pretext", "extra")
    assert PretextBatch._fields == ("images", "labels")  # which tell how many images a mosaic is made of
    assert {field.name for field in dataclasses.fields(Target)} == {"pixels", "skipped"}


def test_a_method_is_given_nothing_of_the_targets_classes(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[tuple[Any, ...]] = []
    built: list[tuple[Any, ...]] = []

    class Spy(OVANet):
        def __init__(self, *arguments: Any) -> None:
            built.append(arguments[1:])
            super().__init__(*arguments)

        def training_step(self, *arguments: Any) -> dict[str, Tensor]:  # type: ignore[override]
            received.append(arguments)
            return super().training_step(*arguments)

    monkeypatch.setitem(METHODS, "ovanet", Spy)
    train(folders.source, folders.target, tmp_path / "run")
    assert built == [(3, OVANet.Options())]  # the number of source classes, and options
    assert len(received) == 8
    for number, (source, target, step, *more) in enumerate(received):
        assert (step, more) == (number, [])
        assert type(source) is SourceBatch
        assert type(target) is TargetBatch
        assert not hasattr(target, "__dict__")  # nothing is pinned to it
        images, indices, pretext, extra = target
        assert pretext is None and not extra  # this method asks for neither
        assert images.shape == (4, 3, 32, 32)
        assert not vars(images)
        assert indices.dtype == torch.int64
        assert indices.max() < 12
        assert not vars(indices)
    # each image has one index, whatever class it shows: an epoch's indices are a plain permutation
    first_epoch = torch.cat([target.indices for _, target, _ in received[:3]])
    assert sorted(first_epoch.tolist()) == list(range(12))


def imports_of(module: str) -> set[str]:
    """The unida modules that a module imports, at any depth of its code; a name from a package may be a module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module if spec.submodule_search_locations else module.rpartition(".")[0]
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return {name for name in found if name.startswith("unida.") and _is_module(name)}


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package: a name in a module
        return False


def modules_of(package: str) -> list[str]:
    folder = Path(unida.__file__).parent / package
    return [f"unida.{package}", *(f"unida.{package}.{m.name}" for m in pkgutil.iter_modules([str(folder)]))]


@pytest.mark.parametrize("package", BEFORE_EVALUATION)
def test_no_import_leads_from_training_to_evaluation(package: str) -> None:
    """Not directly, not through another module. Dynamic imports would be seen as calls of importlib: there are none."""
    names = modules_of(package)
    assert len(names) > 1
    assert_no_way_to_the_truth(names)


def test_no_import_leads_from_the_choice_of_a_tap_to_evaluation() -> None:
    """It is made before training, from images of the target, and steers it."""
    assert_no_way_to_the_truth(["unida.analysis.auto_tap"])
    with pytest.raises(AssertionError):
        assert_no_way_to_the_truth(["unida.analysis.tracking"])  # which looks on, and steers nothing


def assert_no_way_to_the_truth(names: list[str]) -> None:
    to_visit, reached = list(names), set(names)
    while to_visit:
        for name in imports_of(to_visit.pop()) - reached:
            reached.add(name)
            to_visit.append(name)
    assert not [name for name in reached if name.startswith("unida.evaluation")]
    assert not reached & {"unida.runs.pipeline", "unida.api", "unida.runs.summary", "unida.cli"}  # they know the truth


def test_the_walk_finds_imports_of_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass if the walk saw nothing: here it sees what pipeline imports."""
    assert {"unida.evaluation.truth", "unida.evaluation.metrics"} <= imports_of("unida.runs.pipeline")
    (tmp_path / "cheat.py").write_text("def f():\n    from unida.evaluation import truth\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "unida.evaluation.truth" in imports_of("cheat")


def test_the_oracle_is_labelled_and_never_takes_the_place_of_the_last_step(tmp_path: Path) -> None:
    """The evaluation in the middle was far better than the last one: the last one is the result."""
    truth = torch.tensor([0, 1, 2, 2])
    good, bad = truth, torch.tensor([1, 0, 2, 0])
    scores = [open_set_metrics(truth, p, p.clamp(max=1), torch.rand(4), 2) for p in (good, bad)]
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"step": 3, "kind": "evaluation", **scores[0].scalars()})
        + "\n"
        + json.dumps({"step": 6, "kind": "train", "total": 1.0})
        + "\n"
    )
    options = {"steps": 6, "eval_every": 3}
    write_metrics(tmp_path, scores[1], {}, config_from_options({**options, "oracle_best": True}))
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert content["last_step"] == scores[1].scalars()
    assert content["oracle_best"]["step"] == 3
    assert content["oracle_best"]["hos"] == scores[0].hos == 1.0
    assert "oracle" in content["oracle_best"]["note"]
    assert "target labels" in content["oracle_best"]["note"]
    write_metrics(tmp_path, scores[1], {}, config_from_options(options))
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert "oracle_best" not in content
    assert content["last_step"] == scores[1].scalars()
