"""`unida analyze clusters`: what DCC's clusters hold, which classes they were matched to, and how pure they are.

It looks at the last clustering of finished runs. What the target's images really show is used here, for this analysis,
and nowhere else: no run saw it.
"""

import json
import logging
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from unida.config import Config, load_config, method_name, saved_method
from unida.data.options import DataOptions
from unida.data.pairs import benchmark_pair
from unida.errors import UserError, printable
from unida.evaluation.truth import read_truth_of_training
from unida.methods.dcc_options import CARD as DCC
from unida.support.files import write_csv
from unida.support.options import flag
from unida.support.tables import markdown
from unida.support.tensorfile import read_notes, read_tensors

log = logging.getLogger("unida")

MOST_FREQUENT = 3  # failures that are told for each row
NO_CHOICE = ("seed", "accelerator", "devices", "num_nodes", "engine")  # options that make no other row

HEADING = [
    *("clusters", "classes", "found", "found, astray", "missed", "false"),
    *("purity", "lowest", "known lost", "unknown let in"),
]
EXPLAINED = """\
*clusters* of the target, of each seed, against its true *classes*; all else is averaged over seeds. Of the shared
classes: those *found* (matched to a cluster), those of them *astray* (the cluster is mostly another class), and those
*missed*; *false*: matched classes that the target does not have. *Purity*: the share of a cluster's most frequent
class, mean and *lowest* of the clusters. *Known lost*: images of shared classes in unmatched clusters; *unknown let
in*: images of other classes in matched ones. Shares are in per cent. The target's true classes are used for this
analysis only; no run saw them."""


@dataclass(frozen=True)
class Cluster:
    matched: str | None  # the source class that the run took it for
    holds: Counter[str]  # images by true class

    @property
    def size(self) -> int:
        return self.holds.total()

    @property
    def most(self) -> str:
        """The true class of most of its images."""
        return self.holds.most_common(1)[0][0]

    @property
    def purity(self) -> float:
        return self.holds[self.most] / self.size

    @property
    def name(self) -> str:
        return f"{self.matched}'s cluster" if self.matched else f"an unmatched cluster, mostly {self.most},"

    def wrong(self, shared: set[str]) -> Counter[str]:
        """Images that get a wrong answer for lying in it: unknown ones in a matched cluster, known ones in another."""
        return Counter({name: count for name, count in self.holds.items() if (name in shared) != bool(self.matched)})


@dataclass(frozen=True)
class Clustering:
    """The last clustering of a run."""

    run: Path
    benchmark: str  # empty, as the setting, if the run was made on two folders
    setting: str
    source: str  # a domain's short name, or a folder
    target: str
    method: str  # with the options that tell it from other runs of the method
    seed: int
    clusters: list[Cluster]  # those that hold images
    source_classes: frozenset[str]

    @property
    def data(self) -> str:
        return f"{self.benchmark}, {self.setting}" if self.benchmark else "own folders"

    @property
    def target_classes(self) -> set[str]:
        return {name for cluster in self.clusters for name in cluster.holds}

    @property
    def shared(self) -> set[str]:
        return self.target_classes & self.source_classes

    @property
    def matched(self) -> set[str]:
        return {cluster.matched for cluster in self.clusters if cluster.matched}

    @property
    def astray(self) -> list[Cluster]:
        """Matched to a class that the target has, but most of the cluster is another one."""
        return [c for c in self.clusters if c.matched in self.shared and c.matched != c.most]

    def share(self, classes: set[str], matched: bool) -> float:
        """Of the images of these classes, the share that lies in matched, or in unmatched, clusters."""
        counts = [(bool(c.matched) == matched, sum(c.holds[name] for name in classes)) for c in self.clusters]
        return sum(n for inside, n in counts if inside) / max(1, sum(n for _, n in counts))

    def numbers(self) -> list[float]:
        """What the table shows, in the order of HEADING."""
        purities = [cluster.purity for cluster in self.clusters]
        return [
            len(self.clusters),
            len(self.target_classes),
            len(self.shared & self.matched),
            len(self.astray),
            len(self.shared - self.matched),
            len(self.matched - self.shared),
            100 * statistics.mean(purities),
            100 * min(purities),
            100 * self.share(self.shared, matched=False),
            100 * self.share(self.target_classes - self.shared, matched=True),
        ]


# ---- from runs to clusterings ----------------------------------------------------------------------------------------


def read_clusterings(runs: Sequence[Path], visible: bool = True) -> list[Clustering]:
    """The last clustering of each run of DCC whose target has labels; the log says how many others there are.

    Args:
        runs: folders of finished runs.
        visible: show progress where images must be read again.
    """
    of_dcc = [run for run in runs if saved_method(run / "config.yaml") == DCC.name]
    if not of_dcc:
        which = f"{runs[0]} is not a run" if len(runs) == 1 else f"none of the {len(runs)} runs ({runs[0]}, …) is one"
        raise UserError(f"{which} of DCC, and no other method has clusters: make a run with --method {DCC.name}")
    configs = {run: load_config(run / "config.yaml") for run in of_dcc}
    labelled = {run: config for run, config in configs.items() if config.data.benchmark or config.data.target_labels}
    if not labelled:
        raise UserError(
            f"the target of {of_dcc[0]} has no labels to compare clusters with: if its sub-folders are its true "
            "classes, make the run with --target-labels"
        )
    left_out = {"of other methods": len(runs) - len(of_dcc), "without target labels": len(of_dcc) - len(labelled)}
    for what, count in left_out.items():
        if count:
            log.info("left out: %d of %d runs, %s", count, len(runs), what)

    @cache  # seeds of a pair have the same
    def truth_of(data: DataOptions, classes: tuple[str, ...]) -> list[str]:
        truth = read_truth_of_training(data, classes, visible)
        assert truth is not None  # only runs with labels come here
        return [truth.names[label] for label in truth.labels]

    methods = name_methods(list(labelled.values()))
    named = zip(labelled.items(), methods, strict=True)
    found = [_read(run, config, method, truth_of) for (run, config), method in named]
    return sorted(found, key=lambda c: (not c.benchmark, c.data, c.method, c.source, c.target, c.seed))


def name_methods(configs: Sequence[Config]) -> list[str]:
    """A name for each run's method. Where runs of a method differ in options, these are part of it.

    Otherwise, runs that learned differently would be averaged as if they differed in their seeds.
    """
    choices = [_choices(config) for config in configs]
    methods = [method_name(config) for config in configs]
    names = []
    for method, mine in zip(methods, choices, strict=True):
        others = [other for name, other in zip(methods, choices, strict=True) if name == method]
        differing = {name: value for name, value in mine.items() if any(other[name] != value for other in others)}
        names.append(" ".join([method, *_words(differing)]))
    return names


def _choices(config: Config) -> dict[str, Any]:
    """The options that change what a run learns, but not those that say from which images."""
    groups = (config.model, config.training, config.spa, config.method)
    chosen = {name: value for group in groups for name, value in vars(group).items() if name not in NO_CHOICE}
    return chosen | {name: getattr(config.data, name) for name in ("resize", "image_size", "crop")}


def _words(options: Mapping[str, Any]) -> list[str]:
    """As on the command line: a flag that is off is not there."""
    given = {flag(name): value for name, value in options.items() if value is not None and value is not False}
    return [name if value is True else f"{name} {value}" for name, value in given.items()]


def _read(
    run: Path, config: Config, method: str, truth_of: Callable[[DataOptions, tuple[str, ...]], list[str]]
) -> Clustering:
    classes = read_classes(run / "checkpoint" / "model.safetensors")
    class_of_cluster, assignment = read_clusters(run / "checkpoint" / "resume.safetensors")
    truth = truth_of(config.data, classes)
    if len(truth) != len(assignment):
        place = config.data.target or config.data.root
        raise UserError(
            f"{run} has clustered {len(assignment)} images, but its target in {place} now has {len(truth)}: put back "
            "the images that the run was made from, or make the run again"
        )
    holds = [Counter[str]() for _ in class_of_cluster]
    for name, k in zip(truth, assignment, strict=True):
        holds[k][name] += 1
    matched = [classes[label] if label >= 0 else None for label in class_of_cluster]
    clusters = [Cluster(name, counts) for name, counts in zip(matched, holds, strict=True) if counts]
    return Clustering(run, *_place(config.data), method, config.training.seed, clusters, frozenset(classes))


def _place(data: DataOptions) -> tuple[str, str, str, str]:
    """Benchmark, setting, source and target."""
    pair = benchmark_pair(data)
    if pair is None:
        return "", "", str(data.source), str(data.target)
    source, target = (pair.benchmark.find_domain(name).letter for name in (pair.source, pair.target))
    return pair.benchmark.name, data.setting.strip().lower(), source, target


def read_classes(path: Path) -> tuple[str, ...]:
    """The source's classes, by id, from a run's model file."""
    try:
        return tuple(json.loads(read_notes(path)["model"])["classes"])
    except (LookupError, ValueError, TypeError) as error:
        raise UserError(f"{path} was made by another version of unida: train again") from error


def read_clusters(path: Path) -> tuple[list[int], list[int]]:
    """The class that each cluster is matched to (below 0: none), and the cluster of each target image.

    They are in the run's last checkpoint: which image is in which cluster is needed for training, not for answers.
    """
    if not path.exists():
        raise UserError(f"{path} is not there, and it holds the clusters: put it back, or make the run again")
    tensors, _ = read_tensors(path)
    # SPA has the method inside it, as `method`.
    own = {name.removeprefix("method/").removeprefix("method."): tensor for name, tensor in tensors.items()}
    if not {"matched_class", "assignment"} <= own.keys():
        raise UserError(f"{path} holds no clusters, so it is of another run: put this run's own file back")
    return own["matched_class"].tolist(), own["assignment"].tolist()


# ---- what is told of them --------------------------------------------------------------------------------------------


def report(clusterings: Sequence[Clustering]) -> str:
    """Tables in Markdown, one for each benchmark and setting, and what their columns mean."""
    tables = [
        _report_of([c for c in clusterings if c.data == data]) for data in dict.fromkeys(c.data for c in clusterings)
    ]
    return "\n\n".join([*tables, EXPLAINED])


def _report_of(clusterings: list[Clustering]) -> str:
    """A line for each pair, one for the mean of each method, and what goes wrong most."""
    lines, failures = [], []
    shown = _shown_pairs(clusterings)
    for method in dict.fromkeys(c.method for c in clusterings):
        mine = [c for c in clusterings if c.method == method]
        for pair in dict.fromkeys((c.source, c.target) for c in mine):
            of_pair = [c for c in mine if (c.source, c.target) == pair]
            each_seed = ", ".join(str(len(c.clusters)) for c in of_pair)
            lines.append([method, shown[pair], each_seed, *_means(of_pair)[1:]])
        if len(mine) > 1:
            lines.append([f"{method}, mean of {len(mine)} runs", "", *_means(mine)])
        failures += [printable(f"- {method}: {failure}") for failure in most_frequent_failures(mine)]
    parts = [f"### DCC's clusters: {clusterings[0].data}", "", markdown(["method", "pair", *HEADING], lines)]
    return "\n".join([*parts, "", "The most frequent failures:", "", *(failures or ["- none"])])


def _shown_pairs(clusterings: Iterable[Clustering]) -> dict[tuple[str, str], str]:
    """A→D. Folders are shown by their own names, or in full if two pairs would look the same."""
    pairs = dict.fromkeys((c.source, c.target) for c in clusterings)
    short = {pair: "→".join(Path(place).name for place in pair) for pair in pairs}
    return short if len(set(short.values())) == len(pairs) else {pair: "→".join(pair) for pair in pairs}


def _means(clusterings: Iterable[Clustering]) -> list[str]:
    return [f"{statistics.mean(n):.1f}" for n in zip(*(c.numbers() for c in clusterings), strict=True)]


def most_frequent_failures(clusterings: Sequence[Clustering]) -> list[str]:
    """Clusters that give most images a wrong answer; known classes most lost; classes most missed, and false."""
    wrong: dict[str, Counter[str]] = {}  # of clusters by name, over all runs
    runs: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for c in clusterings:
        for cluster in c.clusters:
            wrong.setdefault(cluster.name, Counter()).update(cluster.wrong(c.shared))
            if not cluster.matched:
                lost.update(cluster.wrong(c.shared))
        runs.update({cluster.name for cluster in c.clusters if cluster.wrong(c.shared)})
    told = []
    for name, _ in Counter({name: counts.total() for name, counts in wrong.items()}).most_common(MOST_FREQUENT):
        if runs[name]:
            others = " and ".join(f"{other} ({n})" for other, n in wrong[name].most_common(2))
            told.append(f"{name} holds {others}, in {runs[name]} of {len(clusterings)} runs")
    missed = Counter(name for c in clusterings for name in sorted(c.shared - c.matched))
    false = Counter(name for c in clusterings for name in sorted(c.matched - c.shared))
    sums = {"known images lost": lost, "classes missed (runs)": missed, "classes falsely matched (runs)": false}
    for what, counts in sums.items():
        if counts:
            told.append(f"{what}: " + ", ".join(f"{name} ({n})" for name, n in counts.most_common(MOST_FREQUENT)))
    return told


def write_clusters(clusterings: Iterable[Clustering], path: Path) -> None:
    """A line for each cluster, as comma-separated values."""
    rows = [["run", "benchmark", "setting", "source", "target", "method", "seed", "cluster"]]
    rows[0] += ["images", "matched", "most", "purity", "holds"]
    for c in clusterings:
        of_run = [str(c.run), c.benchmark, c.setting, c.source, c.target, c.method, str(c.seed)]
        for number, cluster in enumerate(c.clusters):
            holds = "; ".join(f"{name}: {count}" for name, count in cluster.holds.most_common())
            of_cluster = [str(number), str(cluster.size), cluster.matched or "", cluster.most]
            rows.append([*of_run, *of_cluster, f"{cluster.purity:.4f}", holds])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, rows)
