"""What DCC's clusters hold: how many there are, which classes they were matched to, and how pure they are.

    python examples/dcc_clusters.py --runs runs/office31 --root DIR [--csv clusters.csv]

Looks at every finished run of DCC in the folder that `office31.py` fills, at its last clustering. What the target's
images really show is used here, for this analysis, and nowhere else: no run saw it.
"""

import argparse
import csv
import json
import re
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from office31_tables import NAMES, PAIRS, markdown
from safetensors import SafetensorError, safe_open

from unida.data.benchmarks import domain_files, load_benchmark
from unida.data.folders import scan_listed
from unida.errors import UserError
from unida.support.tensorfile import read_notes

FOLDER = re.compile(r"([ADW])([ADW])-(unida|osda)-(dcc.*)-(\d+)")  # as office31.py names them
MOST_FREQUENT = 3  # failures that are told for each method


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
    """A run's last clustering."""

    setting: str
    pair: str
    method: str
    seed: int
    clusters: list[Cluster]  # those that hold images
    source_classes: frozenset[str]

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


HEADING = ["clusters", "classes", "found", "found, astray", "missed", "false"]
HEADING += ["purity", "lowest", "known lost", "unknown let in"]
EXPLAINED = """\
*clusters* of the target, of each seed, against its true *classes*; all else is averaged over seeds. Of the shared
classes: those *found* (matched to a cluster), those of them *astray* (the cluster is mostly another class), and those
*missed*; *false*: matched classes that the target does not have. *Purity*: the share of a cluster's most frequent
class, mean and *lowest* of the clusters. *Known lost*: images of shared classes in unmatched clusters; *unknown let
in*: images of other classes in matched ones. Shares are in per cent. The target's true classes are used for this
analysis only; no run saw them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/office31"), help="the folder that office31.py fills")
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds Office-31")
    parser.add_argument("--csv", type=Path, help="a line for each cluster")
    options = parser.parse_args()
    try:
        clusterings = [read(folder, options.root) for folder in finished(options.runs)]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if options.csv is not None:
        write_csv(clusterings, options.csv)
    for setting in dict.fromkeys(c.setting for c in clusterings):
        print(report([c for c in clusterings if c.setting == setting]), end="\n\n")
    print(EXPLAINED)


def finished(runs: Path) -> list[Path]:
    """Folders of finished runs of DCC: by setting, method, pair and seed."""
    folders = [path.parent for path in runs.glob("*/metrics.json") if FOLDER.fullmatch(path.parent.name)]
    if not folders:
        raise UserError(
            f"--runs {runs} holds no finished run of DCC: make some with examples/office31.py --methods dcc"
        )

    def order(folder: Path) -> tuple[bool, str, int, int]:
        setting, pair, method, seed = run_of(folder)
        return setting == "osda", method, PAIRS.index(pair), seed

    return sorted(folders, key=order)


def run_of(folder: Path) -> tuple[str, str, str, int]:
    """Setting, pair, method and seed of a run, from its folder's name."""
    match = FOLDER.fullmatch(folder.name)
    assert match is not None  # it was found by that
    source, target, setting, method, seed = match.groups()
    return setting, f"{source}:{target}", method, int(seed)


def read(folder: Path, root: Path) -> Clustering:
    """The last clustering of a run, beside the truth."""
    setting, pair, method, seed = run_of(folder)
    classes: list[str] = json.loads(read_notes(folder / "checkpoint" / "model.safetensors")["model"])["classes"]
    class_of_cluster, assignment = read_clusters(folder / "checkpoint" / "resume.safetensors")
    truth = true_classes(root, pair[-1], setting)
    if len(truth) != len(assignment):
        raise UserError(
            f"{folder} has clustered {len(assignment)} images, but --root {root} has {len(truth)} for this target: "
            "give the folder that the run was made from"
        )
    holds = [Counter[str]() for _ in class_of_cluster]
    for name, k in zip(truth, assignment, strict=True):
        holds[k][name] += 1
    names = [classes[label] if label >= 0 else None for label in class_of_cluster]
    clusters = [Cluster(name, counts) for name, counts in zip(names, holds, strict=True) if counts]
    return Clustering(setting, pair, method, seed, clusters, frozenset(classes))


def read_clusters(path: Path) -> tuple[list[int], list[int]]:
    """The class that each cluster is matched to (below 0: none), and the cluster of each target image.

    They are in the run's last checkpoint: which image is in which cluster is needed for training, not for answers.
    """
    try:
        with safe_open(path, framework="np") as file:
            names = {name.split("/")[-1].removeprefix("method."): name for name in file.keys()}  # noqa: SIM118 - no dict
            matched_class = file.get_tensor(names["matched_class"]).tolist()
            assignment = file.get_tensor(names["assignment"]).tolist()
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"{path} does not hold the clusters of a run of DCC ({error}): run it again") from error
    return matched_class, assignment


@cache
def true_classes(root: Path, domain: str, setting: str) -> list[str]:
    """The class of each target image in the order that training numbers them: by the digests of their bytes."""
    benchmark = load_benchmark("office31")
    listed = domain_files(benchmark, root, benchmark.domain(domain), "adapt")
    class_of = {str(path): name for path, name in listed}
    files, _ = scan_listed([path for path, _ in listed], root)
    names = [class_of[str(file.path)] for file in files]
    return [name for name in names if name in benchmark.label_sets(setting).target_classes]


def report(clusterings: list[Clustering]) -> str:
    """One setting: a line for each pair, one for the mean of each method, and what goes wrong most."""
    lines, failures = [], []
    for method in dict.fromkeys(c.method for c in clusterings):
        mine = [c for c in clusterings if c.method == method]
        for pair in dict.fromkeys(c.pair for c in mine):
            of_pair = [c for c in mine if c.pair == pair]
            each_seed = ", ".join(str(len(c.clusters)) for c in of_pair)
            lines.append([method, pair.replace(":", "→"), each_seed, *means(of_pair)[1:]])
        lines.append([f"{method}, mean of {len(mine)} runs", "", *means(mine)])
        failures += [f"- {method}: {failure}" for failure in most_frequent_failures(mine)]
    table = markdown(["method", "pair", *HEADING], lines)
    heading = f"### DCC's clusters, {NAMES[clusterings[0].setting]}"
    return "\n".join([heading, "", table, "", "The most frequent failures:", "", *failures])


def means(clusterings: list[Clustering]) -> list[str]:
    return [f"{statistics.mean(n):.1f}" for n in zip(*(c.numbers() for c in clusterings), strict=True)]


def most_frequent_failures(clusterings: list[Clustering]) -> list[str]:
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


def write_csv(clusterings: list[Clustering], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["setting", "pair", "method", "seed", "cluster", "images", "matched", "most", "purity", "holds"]
        )
        for c in clusterings:
            for number, cluster in enumerate(c.clusters):
                run = [c.setting, c.pair, c.method, c.seed, number, cluster.size]
                holds = " ".join(f"{name}:{count}" for name, count in cluster.holds.most_common())
                writer.writerow([*run, cluster.matched or "", cluster.most, f"{cluster.purity:.4f}", holds])


if __name__ == "__main__":
    main()
