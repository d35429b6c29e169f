"""What the studies measure, against slow versions and made-up runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from unida.data.settings import LabelSets
from unida.grids.plan import Task
from unida.studies import correlation, few_classes, openness
from unida.studies.base import seed_means
from unida.studies.curves import last_pretext_accuracy
from unida.studies.few_classes import bins_of, kept_classes
from unida.studies.options import CorrelationOptions, FewClassesOptions, OpennessOptions
from unida.studies.private_probe import halves, probe
from unida.studies.ranks import RESAMPLED, rank_correlation
from unida.support.random import generator
from unida.support.tensorfile import write_tensors


def line(row: str, pair: str, seed: int, hos: float | None, **more: Any) -> dict[str, Any]:
    return {"row": row, "pair": pair, "setting": "unida", "seed": seed, "hos": hos, "alone_hos": hos, **more}


def made_up_run(folder: Path, lines: list[dict[str, Any]], last: dict[str, Any]) -> Task:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(it) + "\n" for it in lines))
    (folder / "metrics.json").write_text(json.dumps(last))
    return Task("run", "ovanet+spa", "folders", "", 0, {"out": str(folder)})


def folders_of(folder: Path, source: str, target: str) -> dict[str, Any]:
    for domain, names in (("source", source), ("target", target)):
        for name in names.split():
            (folder / domain / name).mkdir(parents=True)
            (folder / domain / name / "a.png").write_bytes(b"not opened")
    return {"source": folder / "source", "target": folder / "target", "target_labels": True, "out": folder / "out"}


# Means


def test_a_seed_counts_only_with_all_pairs() -> None:
    lines = [line("a", "A:D", 0, 0.2), line("a", "D:A", 0, 0.4), line("a", "A:D", 1, 0.9), line("a", "D:A", 1, None)]
    assert seed_means(lines, "hos") == [pytest.approx(0.3)]
    assert seed_means([], "hos") == []


def test_openness_is_spread_between_draws() -> None:
    of_draw = {0: (0.2, 0.4), 1: (0.5, 0.7)}
    lines = [
        line("x", "A:D", seed, value, draw=draw, private=2, method="ovanet")
        for draw, values in of_draw.items()
        for seed, value in enumerate(values)
    ]
    assert openness.by_draw(lines, "hos") == [pytest.approx(0.3), pytest.approx(0.6)]
    (table,) = openness.tables(lines, OpennessOptions())
    assert table.lines == [["ovanet", f"45.0 ± {100 * np.std([0.3, 0.6], ddof=1):.1f}"]]


# Correlation


def test_rank_correlation_beside_scipy() -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 5, size=12).astype(float)  # with ties
    y = x + draw.normal(size=12)
    found = rank_correlation([(list(x), list(y))])
    assert found is not None
    picks = generator(0, "bootstrap", 0).integers(12, size=(RESAMPLED, 12))
    slow = [spearmanr(x[pick], y[pick]).statistic for pick in picks[:200]]
    assert found.value == pytest.approx(spearmanr(x, y).statistic)
    assert found.points == 12 and found.low < found.value < found.high
    low, high = np.percentile(slow, [2.5, 97.5])  # of a fifth of the draws
    assert found.low == pytest.approx(low, abs=0.1) and found.high == pytest.approx(high, abs=0.1)


def test_two_runs_are_not_mixed() -> None:
    """Within each run x and y go against each other; both together would seem to rise."""
    runs = [([0.0, 1, 2, 3], [3.0, 2, 1, 0]), ([10.0, 11, 12, 13], [13.0, 12, 11, 10])]
    found = rank_correlation(runs)
    assert found is not None and found.value == -1 and found.high <= 0


@pytest.mark.parametrize("runs", [[], [([1.0, 2], [1.0, 2])], [([1.0, 1, 1, 1], [1.0, 2, 3, 4])]])
def test_nothing_to_correlate(runs: list[Any]) -> None:
    assert rank_correlation(runs) is None


def test_a_curve_of_a_run(tmp_path: Path) -> None:
    steps = [
        {"step": 1, "kind": "train", "count_accuracy_source": 0.2, "count_accuracy_target": 0.4, "total": 9},
        {"step": 2, "kind": "train", "count_accuracy_source": 0.6, "count_accuracy_target": 0.8},
        {"step": 2, "kind": "evaluation", "hos": 0.5, "pas": 0.1, "ntr": 0.7},
        {"step": 3, "kind": "train", "count_accuracy_source": 1.0},
    ]
    last = {"cost": {"steps": 4}, "last_step": {"hos": 0.6}, "measures": {"pas": 0.2, "ntr": 0.8}}
    task = made_up_run(tmp_path / "run", steps, last)
    row = correlation.rows(CorrelationOptions())[2]
    assert correlation.measure(row, task, {}, CorrelationOptions()) == [
        {"step": 2, "hos": 0.5, "pretext_accuracy": pytest.approx(0.5), "pas": 0.1, "ntr": 0.7},
        {"step": 4, "hos": 0.6, "pretext_accuracy": 1.0, "pas": 0.2, "ntr": 0.8},
    ]
    assert last_pretext_accuracy(task.folder) == pytest.approx(0.6)


# Private classes


def test_halves_are_of_each_class() -> None:
    ids = torch.tensor([0] * 5 + [1] * 4 + [2])
    train = halves(ids, split=0)
    assert [int(train[ids == number].sum()) for number in range(3)] == [3, 2, 1]
    assert not torch.equal(train, halves(ids, split=1)) and torch.equal(train, halves(ids, split=0))


def test_the_probe_beside_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3 + 7  # any numbers
    features = torch.randn(60, 6, generator=draw) + 0.7 * torch.nn.functional.one_hot(labels - 7, 6)
    found = probe(features, labels, splits=2)
    slow = []
    for split in range(2):
        train = halves(labels - 7, split).numpy()
        scale = StandardScaler().fit(features[train])
        model = LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(scale.transform(features[train]), labels[train])
        slow.append(model.score(scale.transform(features[~train]), labels[~train]))
    assert found["linear"] == pytest.approx(np.mean(slow)) and 0.4 < found["linear"] < 1
    assert found["linear_std"] == pytest.approx(np.std(slow, ddof=1))
    assert (found["private_classes"], found["private_images"]) == (3, 60)
    apart = probe(torch.nn.functional.one_hot(labels - 7, 6).float(), labels, splits=1)
    assert (apart["linear"], apart["clustering"], apart["nmi"]) == (1.0, 1.0, pytest.approx(1.0))


def test_a_class_of_one_image_is_not_tested() -> None:
    found = probe(torch.eye(2), torch.tensor([3, 4]), splits=3)
    assert found["linear"] is None and found["linear_std"] is None


# Draws of classes


def test_all_rows_of_openness_have_the_same_draws(tmp_path: Path) -> None:
    data = folders_of(tmp_path, "cup pen", "cup fan jar key map owl pot")
    options = OpennessOptions(**data, methods=("source-only", "dcc"), draws=2)
    rows = openness.rows(options)
    kept: dict[tuple[int, int], set[str]] = {}
    for row in rows:
        without = row.options.get("target_without", "").split("/")
        names = {"fan", "jar", "key", "map", "owl", "pot"} - set(without)
        assert kept.setdefault((row.about["private"], row.about["draw"]), names) == names
        assert len(names) == row.about["private"] and "/".join(sorted(names)) == row.about["private_classes"]
    assert sorted(kept) == [(2, 0), (2, 1), (4, 0), (4, 1), (6, 0)]  # all of them can be drawn in one way
    assert kept[2, 0] < kept[4, 0] and kept[2, 1] < kept[4, 1] and kept[2, 0] != kept[2, 1]
    assert [row.about["method"] for row in rows[:4]] == ["source-only", "source-only+spa", "dcc", "dcc+spa"]


def test_few_classes_keep_the_unknown_ones(tmp_path: Path) -> None:
    data = folders_of(tmp_path, "cup pen fan hat", "cup pen fan key map")
    rows = few_classes.rows(FewClassesOptions(**data, classes=(2, 4, 9)))
    assert {row.about["classes"] for row in rows} == {2, 4}  # the source has four
    small = rows[0].options
    left = {"cup", "pen", "fan", "hat"} - set(small["source_without"].split("/"))
    assert len(left) == 2
    assert set(small["target_without"].split("/")) == {"cup", "pen", "fan"} - left  # key and map stay
    assert "source_without" not in rows[-1].options


@pytest.mark.parametrize(("shared", "private", "count"), [(1, 5, 3), (5, 1, 5), (2, 0, 2), (10, 10, 3)])
def test_at_least_one_shared_class_is_kept(shared: int, private: int, count: int) -> None:
    names = [f"class {number}" for number in range(shared + private)]
    sets = LabelSets(shared=tuple(names[:shared]), source_private=tuple(names[shared:]))
    kept = kept_classes(sets, count, draw=0)
    assert len(set(kept)) == count and set(kept) & set(sets.shared)


def test_bins_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    task = Task("run", "row", "folders", "", 0, {"out": str(tmp_path)})
    assert bins_of(task) is None
    (tmp_path / "checkpoint").mkdir()
    tensors = {few_classes.BINS_IN_CHECKPOINT: torch.tensor([0, 1, 1, 2])}
    write_tensors(tmp_path / "checkpoint" / "resume.safetensors", tensors, {})
    assert bins_of(task) == [0, 1, 1, 2]
