"""What it costs to answer together: seconds of each part, peak memory, and how many true neighbours are found.

# how to run
    python benchmarks/together.py                        # 10^4, 10^5 and 10^6 images: about ten minutes
    python benchmarks/together.py --sizes 10000 100000   # a minute or two

Made-up clusters in the 1,280 dimensions of EfficientNet-Lite0: 100 images in a cluster, above 10^5 images 1,000. As in
features of photos, few dimensions vary much and many a little. A process for each size; peak memory is all that is
resident, with the images themselves. Centring, which comes before, and the sample that is kept for new images are not
measured. True neighbours are those of an exact search, for 500 of the images. If faiss-cpu is installed, its search in
cells stands beside ours, up to 10^5 images. Writes together.csv.
"""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import CPU, Measure, in_own_process, report, timed
from torch import Tensor

from unida.answering import neighbours, together
from unida.answering.alone import Scored
from unida.answering.threshold import find_threshold
from unida.support.memory import peak_memory_bytes

DIM, CLASSES, CHUNK = 1280, 20, 20_000
CLUSTERS_KNOWN = 2 / 3  # the others are unknown
CHECKED = 500  # images whose neighbours are searched exactly
FAISS_LIMIT = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Answering together.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--faiss", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    if options.size:
        print(json.dumps(with_faiss(options.size) if options.faiss else one_size(options.size)))
        return
    has_faiss = importlib.util.find_spec("faiss") is not None
    if not has_faiss:
        print("faiss-cpu is not installed: no comparison with it")
    measures = []
    for size in options.sizes:
        measures += [Measure(f"{size:,}: {name}", *value) for name, value in run(size).items()]
        if has_faiss and neighbours.EXACT < size <= FAISS_LIMIT:
            found = run(size, "--faiss")
            measures += [Measure(f"{size:,}: faiss-cpu: {name}", *value) for name, value in found.items()]
    report(measures, options.csv, dimensions=DIM, classes=CLASSES, threads=torch.get_num_threads())


def run(size: int, *more: object) -> dict[str, Any]:
    result = in_own_process(__file__, "--size", size, *more)
    print(f"{size:,}", *more, *(f"{name} {value:.4g} {unit}," for name, (value, unit) in result.items()), flush=True)
    return result


@torch.inference_mode()
def one_size(size: int) -> dict[str, tuple[float, str]]:
    """The parts of `spread_scores`, one by one, and the threshold."""
    scored = made_up(size)
    k = together.default_neighbours(size)
    own = together._own_values(scored, 0.5)
    before = peak_memory_bytes(CPU)
    search, found = timed(lambda: neighbours.nearest(scored.directions, k))
    mutual, weight = timed(lambda: together.mutual_weights(found.others))
    own_weight = together.how_much_alone(found.others, weight, scored.probabilities)
    spreading, spread = timed(lambda: together._solve(found.others, weight, own_weight, own))
    _, unknown = together._finished(spread)
    threshold, _ = timed(lambda: find_threshold(unknown, alike=1 + k / 2))
    peak = peak_memory_bytes(CPU)
    rows = some_rows(size)
    return {
        "neighbours of each image": (k, ""),
        "search": (search, "s"),
        "mutual weights": (mutual, "s"),
        "spreading": (spreading, "s"),
        "threshold": (threshold, "s"),
        "the four together": (search + mutual + spreading + threshold, "s"),
        "peak memory": (peak / 2**30, "GiB"),
        "peak memory before them": (before / 2**30, "GiB"),
        "true neighbours found": (100 * share_found(scored.directions, rows, found.others[rows]), "%"),
    }


def with_faiss(size: int) -> dict[str, tuple[float, str]]:
    """The same search by faiss: as many dimensions and cells, and as many of them searched."""
    import faiss

    directions = made_up(size).directions.float()
    k = together.default_neighbours(size)

    def search() -> Tensor:
        recipe = f"PCA{neighbours.DIMENSIONS},L2norm,IVF{size // neighbours.CELL},Flat"
        index = faiss.index_factory(DIM, recipe, faiss.METRIC_INNER_PRODUCT)
        faiss.extract_index_ivf(index).nprobe = neighbours.PROBES
        index.train(directions.numpy())
        index.add(directions.numpy())
        return torch.from_numpy(index.search(directions.numpy(), k + 1)[1])

    seconds, found = timed(search)
    rows = some_rows(size)
    others = torch.stack([line[line != row][:k] for row, line in zip(rows, found[rows], strict=True)])
    share = share_found(directions, rows, others)
    return {"search": (seconds, "s"), "true neighbours found": (100 * share, "%")}


def made_up(size: int) -> Scored:
    """Images in clusters, centred as `spread_scores` does; some at a time, so that this does not set the peak."""
    random = torch.Generator().manual_seed(0)
    clusters = size // (100 if size <= 10**5 else 1000)
    scale = torch.arange(1, DIM + 1) ** -0.5  # of the dimensions
    centres = torch.randn(clusters, DIM, generator=random) * scale
    belongs = torch.randint(clusters, (size,), generator=random)
    is_unknown = belongs >= CLUSTERS_KNOWN * clusters
    directions = torch.empty(size, DIM, dtype=torch.float16)
    for part, places in zip(directions.split(CHUNK), belongs.split(CHUNK), strict=True):
        noise = torch.randn(len(part), DIM, generator=random) * scale
        part.copy_(F.normalize(centres[places] + noise, dim=1))
    centre = sum(part.float().sum(dim=0) for part in directions.split(CHUNK)) / size
    for part in directions.split(CHUNK):
        part.copy_(together.centred(part, centre))
    logits = torch.randn(size, CLASSES, generator=random)
    logits[torch.arange(size), belongs % CLASSES] += 4.0 * ~is_unknown
    unknown = torch.sigmoid(2.0 * is_unknown - 1.0 + torch.randn(size, generator=random))
    return Scored(directions, logits.softmax(dim=1), unknown)


def some_rows(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(1))[:CHECKED]


def share_found(directions: Tensor, rows: Tensor, others: Tensor) -> float:
    """How many of the k true neighbours of some rows are among the `others` that a search found."""
    wanted = directions[rows].float()
    cosine = torch.cat([wanted @ part.float().T for part in directions.split(CHUNK)], dim=1)
    cosine[torch.arange(len(rows)), rows] = -1  # the image itself
    true = cosine.topk(others.shape[1], dim=1).indices
    return float((true[:, :, None] == others[:, None, :]).any(dim=2).double().mean())


if __name__ == "__main__":
    main()
