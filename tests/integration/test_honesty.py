"""Target labels cannot reach training: there is no way from them to it, and no trace of them in the weights."""

import csv
import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_runs import adapt_arguments, all_weights, last_step, lines_of, model_hash, note_reads, run_here
from torch import Tensor, nn

from unida.config import config_from_options
from unida.data import pairs
from unida.data.benchmarks import Benchmark, load_benchmark
from unida.data.benchmarks.spec import Split
from unida.data.domains import Target, open_domains
from unida.data.folders import scan
from unida.data.glyphs import GlyphFolders, draw, write_glyphs
from unida.data.settings import LabelSets
from unida.evaluation.metrics import open_set_metrics
from unida.losses.entropy import entropy
from unida.methods import METHODS, Card
from unida.methods.base import (
    Losses,
    Method,
    Phase,
    Problem,
    Round,
    Scores,
    SourceBatch,
    Sweep,
    TargetBatch,
    Turn,
    Want,
)
from unida.methods.dcc import DCC
from unida.methods.ovanet import OVANet
from unida.methods.ovanet_options import OVANetOptions
from unida.models.backbone import Backbone
from unida.recipes.base import Made
from unida.runs.summary import write_metrics
from unida.training.batches import AllImages


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


def answering(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return content["answering"]  # type: ignore[no-any-return]


def train_lines(run: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(run) if line["kind"] == "train"]


def assert_same_weights(run: Path, other: Path) -> None:
    assert model_hash(run) == model_hash(other)
    saved = [(folder / "checkpoint" / "resume.safetensors").exists() for folder in (run, other)]
    assert saved[0] == saved[1]
    ours, theirs = (all_weights(run), all_weights(other)) if all(saved) else ({}, {})  # without steps, there is none
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert train_lines(run) == train_lines(other)


SPA = {"spa": True, "spa.vocabulary": 16, "spa.pretext": "on", "spa.pool": 64, "spa.bins": "auto"}


def answers_by_content(run: Path) -> dict[str, tuple[str, ...]]:
    with (run / "predictions.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {hashlib.sha256(Path(path).read_bytes()).hexdigest(): tuple(answer) for path, *answer in rows}


@pytest.mark.parametrize(
    ("choices", "renamings_tried"),
    [
        pytest.param({"train": "all"}, ("rotated",), id="all"),
        pytest.param({"train": "tail", "regime": "published"}, ("strangers",), id="tail, published"),
        pytest.param({"train": "head"}, ("one",), id="head"),
        pytest.param({"train": "tail", **SPA, "spa.preset": "paper"}, ("strangers",), id="tail with SPA"),
    ],
)
def test_names_of_target_folders_change_no_weight_and_no_answer(
    folders: GlyphFolders, tmp_path: Path, choices: dict[str, Any], renamings_tried: tuple[str, ...]
) -> None:
    options = {"eval_every": 3, "oracle_best": True, **choices}
    first = train(folders.source, folders.target, tmp_path / "first", **options)
    results = [last_step(first)]
    for how in renamings_tried:
        target = renamed(folders.target, tmp_path / how / "target", renamings(folders)[how])
        run = train(folders.source, target, tmp_path / how / "run", **options)
        assert_same_weights(run, first)
        assert answers_by_content(run) == answers_by_content(first)
        assert answering(run) == answering(first)  # neighbours, and the threshold that was found
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


def train_on_office(place: Path, label_sets: LabelSets, names: dict[str, str]) -> Path:
    """A run on our own Office-31, some of whose target classes have other names."""
    true = {name: name for name in ("back_pack", "bike", "headphones")}
    draw_office(place / "office", {**true, **names})
    given = {"benchmark": "office31", "root": place / "office", "pair": "amazon:dslr", "target_labels": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "load_benchmark", lambda name: office(label_sets))
        return train(None, None, place / "run", **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain_office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that those under other label sets are held to."""
    return train_on_office(tmp_path_factory.mktemp("plain"), LabelSets(CLASSES[:2], CLASSES[2:3], CLASSES[3:4]), {})


@pytest.mark.parametrize("case", OFFICE_CASES)
def test_label_sets_of_a_benchmark_change_no_weight(plain_office: Path, tmp_path: Path, case: str) -> None:
    """The same images under other label sets: which classes are shared is a target label too."""
    assert_same_weights(train_on_office(tmp_path, *OFFICE_CASES[case]), plain_office)


def test_nothing_that_a_method_meets_has_labels_of_the_target() -> None:
    assert TargetBatch._fields == ("images", "indices", "extra")
    assert Made._fields == ("images", "labels", "of")  # labels tell how an image was made
    files_left_out = {"skipped", "copies"}
    assert {field.name for field in dataclasses.fields(Target)} == {"pixels", *files_left_out}
    assert {field.name for field in dataclasses.fields(Problem)} == {
        "num_classes",  # of the source
        "num_source",
        "num_target",
        "steps",
        "seed",
        "regime",  # an option
        "framed",  # measured on features of both domains
    }
    for sweep in (Sweep, AllImages):
        assert {name for name in vars(sweep) if not name.startswith("_")} == {"source_labels", "made"}


def test_a_method_is_given_nothing_of_the_targets_classes(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[tuple[Any, ...]] = []
    built: list[tuple[Any, ...]] = []

    class Spy(OVANet):
        def __init__(self, *arguments: Any) -> None:
            built.append(arguments[1:])
            super().__init__(*arguments)

        def training_step(self, *arguments: Any) -> Losses:
            received.append(arguments)
            return super().training_step(*arguments)

    monkeypatch.setattr("unida.methods.ovanet.OVANet", Spy)
    train(folders.source, folders.target, tmp_path / "run")
    # the number of source classes, how many images and steps there are, and options
    assert built == [(Problem(num_classes=3, num_source=9, num_target=12, steps=8, seed=0), OVANetOptions())]
    assert len(received) == 8
    for number, (source, target, step, *more) in enumerate(received):
        assert (step, more) == (number, [])
        assert type(source) is SourceBatch
        assert type(target) is TargetBatch
        assert not hasattr(target, "__dict__")  # nothing is pinned to it
        images, indices, extra = target
        assert not extra  # this method wants nothing
        assert images.shape == (4, 3, 32, 32)
        assert not vars(images)
        assert indices.dtype == torch.int64
        assert indices.max() < 12
        assert not vars(indices)
    # each image has one index, whatever class it shows: an epoch's indices are a plain permutation
    first_epoch = torch.cat([target.indices for _, target, _ in received[:3]])
    assert sorted(first_epoch.tolist()) == list(range(12))


def test_images_of_the_target_that_a_method_names_come_without_labels(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Made] = []

    class Spy(DCC):
        def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
            received.extend(target.extra.values())
            return super().training_step(source, target, step)

    monkeypatch.setattr("unida.methods.dcc.DCC", Spy)
    train(folders.source, folders.target, tmp_path / "run", method="dcc", bottleneck=8)
    assert len(received) >= 8
    for made in received:
        assert type(made) is Made and not hasattr(made, "__dict__")
        assert not made.labels.any()  # 0 for every image: nothing was made of it
        assert made.of.max() < 12 and not vars(made.images) and not vars(made.labels) and not vars(made.of)


# ---- phases without a source -----------------------------------------------------------------------------------------


class WithoutSource(Method):
    """Learns from both domains, then leaves the source behind."""

    read: ClassVar[list[str]] = []  # whose images are asked for, in order

    def __init__(self, backbone: Backbone, problem: Problem, options: Any) -> None:
        super().__init__(backbone, problem, options)
        self.head = nn.Linear(backbone.num_features, problem.num_classes)

    def phases(self) -> tuple[Phase, Phase]:
        look = Round(lambda step, sweep: self.look(sweep), every=2, at_end=True)
        return (
            Phase((Turn(self.training_step, self.groups()),), "both"),
            Phase((Turn(self.alone, self.groups()),), "target alone", start=self.leave, round=look, source=None),
        )

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        return {"closed": F.cross_entropy(self.head(self.features(source.images)), source.labels)}

    def alone(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        assert not any(map(len, source))  # no image, label, index, nor anything beside them
        return {"entropy": entropy(self.head(self.features(target.images)).softmax(dim=1)).mean()}

    def leave(self, sweep: Sweep) -> None:
        self.read.append("the source is left")

    def look(self, sweep: Sweep) -> None:
        assert len(sweep("target")) == 12

    def score(self, features: Tensor) -> Scores:
        logits = self.head(features)
        return Scores(logits, 1 - logits.softmax(dim=1).amax(dim=1))


class WantsSource(WithoutSource):
    """Asks for an image of the source when there is none any more."""

    def wants(self, step: int) -> list[Want]:
        return [Want("one more", "source", np.array([0]))]


@dataclasses.dataclass(frozen=True)
class NoOptions:
    pass


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose images training is given, in order: every way to an image goes through the stream's inputs."""
    read: list[str] = []
    for method in (WithoutSource, WantsSource):
        card = Card(method.__name__, "", "", "", NoOptions, f"{__name__}:{method.__name__}")
        monkeypatch.setitem(METHODS, method.__name__, card)
        monkeypatch.setattr(method, "read", read)
    note_reads(monkeypatch, read)
    return read


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({"train": "all"}, id="all"),
        pytest.param({"train": "all", **SPA}, id="all with SPA"),
        pytest.param({"train": "tail", **SPA, "spa.preset": "paper"}, id="tail with SPA"),
    ],
)
def test_in_a_phase_without_a_source_no_source_image_is_read(
    folders: GlyphFolders, tmp_path: Path, read: list[str], choices: dict[str, Any]
) -> None:
    run = train(folders.source, folders.target, tmp_path / "run", method="WithoutSource", **choices)
    assert [line["phase"] for line in train_lines(run)] == ["both"] * 4 + ["target alone"] * 4
    left = read.index("the source is left")
    assert "source" in read[:left]
    assert set(read[left + 1 :]) == {"target"}
    assert len(read) - left > 4 + 3  # steps, and rounds


def test_a_phase_without_a_source_gives_none_to_a_method_that_asks_for_it(
    folders: GlyphFolders, tmp_path: Path, read: list[str]
) -> None:
    with pytest.raises(AssertionError, match="phase 'target alone' has no source"):
        train(folders.source, folders.target, tmp_path / "run", method="WantsSource")
    left = read.index("the source is left")
    assert read[:left].count("source") == 2 * 4 and "source" not in read[left:]


# ---- the result ------------------------------------------------------------------------------------------------------


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
