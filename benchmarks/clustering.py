"""A re-clustering round of DCC, all K of a search with their consensus scores: this library against scikit-learn.

# how to run
    python benchmarks/clustering.py                # a mixture with 25 groups, some minutes
    python benchmarks/clustering.py --root DIR     # Office-31 in DIR too: its six pairs, pretrained EfficientNet-Lite0

The reference's side is scikit-learn's KMeans with ten restarts and a silhouette score for every K, then the consensus
score by loops over pairs. Both sides try every K (the early stop is off), so that they do the same work; the K that
each would choose, with the early stop, is in the table. Score and choice depend on the seeding, on either side: five
seeds stand against five random states, and how far scikit-learn is from itself is the measure for how far the two
sides may be apart. Writes clustering.csv.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from common import CPU, Measure, report, timed
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from torch import Tensor

from unida.clustering.consensus import falls, search_number_of_clusters, source_centres
from unida.clustering.kmeans import centred, lloyd, seedings
from unida.config import config_from_options
from unida.data.augment import Preprocess
from unida.data.domains import open_domains
from unida.data.pixels import Pixels
from unida.models.backbone import Backbone, create_backbone

DIM, BACKBONE = 256, "tf_efficientnet_lite0"
NEVER = 10**6  # drops that stop a search: none does
Domains = tuple[Tensor, Tensor, Tensor, Tensor]  # source features, labels, centres; target features
Scores = dict[int, float]  # consensus by K


def main() -> None:
    parser = argparse.ArgumentParser(description="Clustering, side by side.")
    parser.add_argument("--root", type=Path, help="the folder that holds Office-31")
    parser.add_argument("--images", type=int, default=3900)
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--maximum", type=int, default=75)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    measures = compare("mixture of 25", made_up(options.images), options)
    if options.root:
        for pair, domains in office31(options.root):
            measures += compare(pair, domains, options)
    report(
        measures,
        options.csv,
        images=options.images,
        clusters=f"{options.interval} to {options.maximum}",
        seeds=options.seeds,
        threads=torch.get_num_threads(),
    )


def compare(name: str, domains: Domains, options: argparse.Namespace) -> list[Measure]:
    limits = {"start": options.interval, "interval": options.interval, "maximum": options.maximum, "drops": NEVER}
    search = partial(search_number_of_clusters, *domains, **limits)
    rounds = [timed(partial(search, seed=seed)) for seed in range(options.seeds)]
    fast = median(seconds for seconds, _ in rounds)
    ours: list[Scores] = [dict(found.tried) for _, found in rounds]
    counts = list(ours[0])
    slow, fits = timed(lambda: [plain_clustering(domains, K) for K in counts])
    theirs: list[Scores] = [{K: score for K, (score, _) in zip(counts, fits, strict=True)}]
    for state in range(1, options.seeds):
        theirs.append({K: plain_clustering(domains, K, state, silhouette=False)[0] for K in counts})
    points, _ = centred(domains[3])
    inertias = [lloyd(points, seeds).inertia for seeds in seedings(points, counts, seed=0)]  # those of seed 0
    ratios = [here / there for here, (_, there) in zip(inertias, fits, strict=True)]
    return [
        Measure(f"{name}: {what}", value, unit)
        for what, value, unit in [
            ("target images", len(domains[3]), ""),
            ("this library", fast, "s"),
            ("scikit-learn, ten restarts and silhouette", slow, "s"),
            ("faster by", slow / fast, "times"),
            ("inertia, mean over K of ours / theirs", float(np.mean(ratios)), ""),
            ("the same, worst K", max(ratios), ""),
            ("K chosen by this library, each seed", " ".join(str(chosen(scores)) for scores in ours), ""),
            ("K chosen by scikit-learn's scores, each state", " ".join(str(chosen(scores)) for scores in theirs), ""),
            ("score of the chosen K, this library", score_of_choice(ours), ""),
            ("score of the chosen K, scikit-learn", score_of_choice(theirs), ""),
            ("score, mean over K and seeds, this library", mean_score(ours), ""),
            ("score, mean over K and states, scikit-learn", mean_score(theirs), ""),
            ("score of a K apart, this library and scikit-learn", apart(zip(ours, theirs, strict=True)), ""),
            ("score of a K apart, scikit-learn and another state", apart(pairwise(theirs)), ""),
        ]
    ]


def score_of_choice(runs: list[Scores]) -> float:
    return float(np.mean([scores[chosen(scores)] for scores in runs]))


def mean_score(runs: list[Scores]) -> float:
    return float(np.mean([list(scores.values()) for scores in runs]))


def apart(sides: Iterable[tuple[Scores, Scores]]) -> float:
    return float(np.mean([abs(one[K] - other[K]) for one, other in sides for K in one]))


def plain_clustering(
    domains: Domains, count: int, random_state: int = 0, silhouette: bool = True
) -> tuple[float, float]:
    """Consensus score and inertia of one K, with all that the reference computes on the way."""
    source, labels, centres, target = (x.numpy() for x in domains)
    fit = KMeans(count, n_init=10, random_state=random_state).fit(target)
    if silhouette:
        silhouette_score(target, fit.labels_)  # computed and never used
    clusters = fit.cluster_centers_ / np.linalg.norm(fit.cluster_centers_, axis=1, keepdims=True)
    similarity = centres @ clusters.T
    scores = []
    for c in range(len(centres)):
        k = int(similarity[c].argmax())
        if similarity[:, k].argmax() != c:
            continue
        from_source = (source[labels == c] @ clusters.T).argmax(axis=1) == k
        from_target = (target[fit.labels_ == k] @ centres.T).argmax(axis=1) == c
        scores.append((from_source.mean() + from_target.mean()) / 2)
    return float(np.mean(scores)), float(fit.inertia_)


def chosen(scores: Scores) -> int:
    """The K before three drops in a row, or the best."""
    counts, values = list(scores), list(scores.values())
    for end in range(len(values)):
        if falls(values[: end + 1], 3):
            return counts[end - 3]
    return max(counts, key=lambda count: scores[count])


def made_up(images: int, groups: int = 25, classes: int = 15) -> Domains:
    """A target of 25 groups that overlap, and a source of 15 classes, ten of which are among them."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((groups + 5, DIM))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    def draw(members: np.ndarray, shift: float) -> Tensor:
        domain = directions + shift * rng.standard_normal(directions.shape) / np.sqrt(DIM)
        points = domain[members] + 2.5 * rng.standard_normal((len(members), DIM)) / np.sqrt(DIM)
        return F.normalize(torch.from_numpy(points).float(), dim=1)

    class_directions = np.concatenate([np.arange(10), np.arange(groups, groups + 5)])
    labels = rng.integers(classes, size=images // 2)
    source = draw(class_directions[labels], shift=0.5)
    target = draw(rng.integers(groups, size=images), shift=0.5)
    return domains_of(source, torch.from_numpy(labels), target)


@torch.inference_mode()
def office31(root: Path) -> Iterator[tuple[str, Domains]]:
    """Of each pair, under UniDA: pooled features of a pretrained backbone, in their first 256 principal directions."""
    backbone = create_backbone(BACKBONE).eval()
    with tempfile.TemporaryDirectory() as cache:
        for pair in (f"{one}:{other}" for one, other in permutations(["amazon", "dslr", "webcam"], 2)):
            task = {"benchmark": "office31", "root": root, "pair": pair, "setting": "unida"}
            config = config_from_options({**task, "cache": cache, "out": Path(cache) / "run"})
            source, target = open_domains(config.data)
            preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, CPU)
            features = [pooled(backbone, preprocess, domain.pixels) for domain in (source, target)]
            both = torch.cat(features)
            around_mean = both - both.mean(dim=0)
            directions = torch.linalg.svd(around_mean, full_matrices=False).Vh[:DIM]
            projected = F.normalize(around_mean @ directions.T, dim=1)
            count = len(source.pixels)
            labels = torch.from_numpy(source.labels)
            yield pair, domains_of(projected[:count].clone(), labels, projected[count:].clone())


def pooled(backbone: Backbone, preprocess: Preprocess, pixels: Pixels) -> Tensor:
    parts = np.array_split(np.arange(len(pixels)), len(pixels) // 64 + 1)
    return torch.cat([backbone(preprocess.test_view(pixels, part)) for part in parts])


def domains_of(source: Tensor, labels: Tensor, target: Tensor) -> Domains:
    return source, labels, source_centres(source, labels, int(labels.max()) + 1), target


if __name__ == "__main__":
    main()
