"""A re-clustering round of DCC, all K of a search with their consensus scores: this library against scikit-learn.

# how to run
    python benchmarks/clustering.py                # a mixture with 25 groups, some minutes
    python benchmarks/clustering.py --root DIR     # Office-31 in DIR too: dslr to amazon, pretrained EfficientNet-Lite0

The reference's side is scikit-learn's KMeans with ten restarts and a silhouette score for every K, then the consensus
score by loops over pairs. Both sides try every K (the early stop is off), so that they do the same work; the K that
each would choose, with the early stop, is in the table. The score depends on the seeding: how far scikit-learn is from
itself with another random state is the measure for how far the two sides may be apart. Writes clustering.csv.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from common import CPU, Measure, report, timed
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from torch import Tensor

from unida.clustering import Search, centred, falls, lloyd, search_number_of_clusters, seedings, source_centres
from unida.config import config_from_options
from unida.data.augment import Preprocess
from unida.data.cache import Pixels
from unida.data.domains import open_domains
from unida.models.backbone import Backbone, create_backbone

DIM, BACKBONE = 256, "tf_efficientnet_lite0"
NEVER = 10**6  # drops that stop a search: none does
Domains = tuple[Tensor, Tensor, Tensor, Tensor]  # source features, labels, centres; target features


def main() -> None:
    parser = argparse.ArgumentParser(description="Clustering, side by side.")
    parser.add_argument("--root", type=Path, help="the folder that holds Office-31")
    parser.add_argument("--images", type=int, default=3900)
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--maximum", type=int, default=75)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    measures = compare("mixture of 25", made_up(options.images), options)
    if options.root:
        measures += compare("dslr:amazon", office31(options.root), options)
    report(
        measures,
        options.csv,
        images=options.images,
        clusters=f"{options.interval} to {options.maximum}",
        threads=torch.get_num_threads(),
    )


def compare(name: str, domains: Domains, options: argparse.Namespace) -> list[Measure]:
    limits = {"start": options.interval, "interval": options.interval, "maximum": options.maximum, "seed": 0}
    rounds = [timed(lambda: search_number_of_clusters(*domains, **limits, drops=NEVER)) for _ in range(3)]
    ours: Search = rounds[0][1]
    fast = median(seconds for seconds, _ in rounds)
    counts = [K for K, _ in ours.tried]
    slow, theirs = timed(lambda: [plain_clustering(domains, K) for K in counts])
    others = [plain_clustering(domains, K, random_state=1) for K in counts]
    points, _ = centred(domains[3])
    inertias = [lloyd(points, seeds).inertia for seeds in seedings(points, counts, seed=0)]  # those of the search
    ratios = [here / there for here, (_, there) in zip(inertias, theirs, strict=True)]
    our_scores, their_scores, other_scores = (
        dict(zip(counts, scores, strict=True))
        for scores in ([s for _, s in ours.tried], [s for s, _ in theirs], [s for s, _ in others])
    )
    our_choice = search_number_of_clusters(*domains, **limits).num_clusters
    their_choice, other_choice = chosen(their_scores), chosen(other_scores)
    return [
        Measure(f"{name}: target images", len(domains[3]), ""),
        Measure(f"{name}: this library", fast, "s"),
        Measure(f"{name}: scikit-learn, ten restarts and silhouette", slow, "s"),
        Measure(f"{name}: faster by", slow / fast, "times"),
        Measure(f"{name}: inertia, mean over K of ours / theirs", float(np.mean(ratios)), ""),
        Measure(f"{name}: the same, worst K", max(ratios), ""),
        Measure(f"{name}: K chosen by this library", our_choice, ""),
        Measure(f"{name}: K chosen by scikit-learn's scores", their_choice, ""),
        Measure(f"{name}: K chosen by scikit-learn's, another random state", other_choice, ""),
        Measure(f"{name}: score of this library's K", our_scores[our_choice], ""),
        Measure(f"{name}: score of scikit-learn's K", their_scores[their_choice], ""),
        Measure(f"{name}: score of scikit-learn's K, another random state", other_scores[other_choice], ""),
        Measure(f"{name}: scores apart, mean over K", apart(our_scores, their_scores), ""),
        Measure(f"{name}: scikit-learn from itself, another random state", apart(other_scores, their_scores), ""),
    ]


def apart(scores: dict[int, float], others: dict[int, float]) -> float:
    return float(np.mean([abs(scores[K] - others[K]) for K in scores]))


def plain_clustering(domains: Domains, count: int, random_state: int = 0) -> tuple[float, float]:
    """Consensus score and inertia of one K, with all that the reference computes on the way."""
    source, labels, centres, target = (x.numpy() for x in domains)
    fit = KMeans(count, n_init=10, random_state=random_state).fit(target)
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


def chosen(scores: dict[int, float]) -> int:
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
def office31(root: Path) -> Domains:
    """Pooled features of a pretrained backbone, in their first 256 principal directions."""
    with tempfile.TemporaryDirectory() as cache:
        task = {"benchmark": "office31", "root": root, "pair": "dslr:amazon", "setting": "unida"}
        config = config_from_options({**task, "cache": cache, "out": Path(cache) / "run"})
        source, target = open_domains(config.data)
        backbone = create_backbone(BACKBONE).eval()
        preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, CPU)
        features = [pooled(backbone, preprocess, domain.pixels) for domain in (source, target)]
    both = torch.cat(features)
    around_mean = both - both.mean(dim=0)
    directions = torch.linalg.svd(around_mean, full_matrices=False).Vh[:DIM]
    projected = F.normalize(around_mean @ directions.T, dim=1)
    count = len(source.pixels)
    return domains_of(projected[:count].clone(), torch.from_numpy(source.labels), projected[count:].clone())


def pooled(backbone: Backbone, preprocess: Preprocess, pixels: Pixels) -> Tensor:
    parts = np.array_split(np.arange(len(pixels)), len(pixels) // 64 + 1)
    return torch.cat([backbone(preprocess.test_view(pixels, part)) for part in parts])


def domains_of(source: Tensor, labels: Tensor, target: Tensor) -> Domains:
    return source, labels, source_centres(source, labels, int(labels.max()) + 1), target


if __name__ == "__main__":
    main()
