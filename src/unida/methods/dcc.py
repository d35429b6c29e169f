"""DCC: Domain Consensus Clustering for Universal Domain Adaptation (Li et al., CVPR 2021).

    f: backbone → Linear → BatchNorm, the "neck" feature       classifier: f → C, with a bias
    M: a memory of target prototypes, one unit vector per cluster

    before the first step, and fifteen times in a run, the last time after its last step:
        cluster the target for five numbers K, above C up to max(3C, 2√N_t), and keep the K that agreed best with
        the source's classes so far
        a class and a cluster that are each other's nearest, and may be near, are matched; M ← the clusters' centres
    every step:
        L = CE(source batch)                              shuffled, not balanced
          + λ · CDD(f_s, f_t) + CE(f_s)                   some matched classes, some images of each in both domains
          + ramp(t) · CE(cos(f_t, M) / 0.1, cluster)      some clusters, some images of each; they move M first
    a target image is unknown if its unknown score is above ½, else argmax classifier:
        cluster k, whose nearest class is c: u_k = σ((h_c − cos(k, c)) / 0.1)
            h_c: between clusters that come near to a class and those that do not (unida.clustering.strangeness)
        unknown score of x: the mean over the five K of Σ_k softmax(cos(x, ·) / 0.1)_k u_k

`--clustering published` searches for one K, and matches clusters that are nearest, near or not. An image is then
unknown if its nearest prototype's cluster is not matched (to any class). If every cluster is matched, nothing is: the
problem is taken as closed-set. If none is matched, everything is unknown, and training continues without CDD. Its
unknown score is the softmax between two prototypes, the nearest unmatched one and the nearest matched one, at the
memory loss's temperature: above ½ exactly if the unmatched one is nearer.

Before the first clustering (in a warm-up) the classifier answers alone.

Differences from the released code:
    Clusters and answers. As above: the K on which two rounds agree is chance, and what is nearest need not be near
    (docs/studies/dcc.md). `--clustering published` does as the released code.
    Batches. It draws their classes and clusters with repetition: nearly every batch has some twice, even if many are
    matched, and CDD then pushes a class away from itself. Here those of a batch differ, and there are fewer if fewer
    are matched (`--repeat-classes` draws as the released code).
    Logits. It keeps 10 without images in Office-31's open-set setting, and may answer with one of them; here there are
    none (`--unused-logits 10`; they are no answers).
    HOS. It reports 0 if every cluster is matched. Here there is no HOS if the target has no unknown images, and it is 0
    only if the target has some and none was refused.
    k-means. It is spherical (faiss) on VisDA and DomainNet; here it is the same for all, on unit features. The seeding
    differs too (`unida.clustering`).
    Ramp and learning rate. It cuts them off after 3,000 steps. Here they are stretched to the run's length and end at
    the same values.
    Images. It resizes the short side: `--resize short`.
"""

import logging
import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.clustering.consensus import (
    cluster_by_each,
    consensus,
    search_number_of_clusters,
    source_centres,
)
from unida.clustering.kmeans import Clusters, kmeans_from
from unida.clustering.strangeness import strangeness
from unida.errors import UserError
from unida.losses.cdd import contrastive_domain_discrepancy
from unida.losses.prototype_memory import memory_loss, ramp, update_memory
from unida.methods.base import (
    DomainName,
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
from unida.methods.dcc_options import CARD, DCCOptions
from unida.models.backbone import Backbone
from unida.support.random import generator

log = logging.getLogger("unida")

NO_CLUSTER, UNMATCHED = -2, -1  # instead of the class that a row of the memory is matched to
CLUSTERINGS = 5  # numbers of clusters that answer, above the number of classes, up to the largest of DCC's search …
CLUSTERS_PER_ROOT = 2  # … or to this times √N_t, if it is more: a source of few classes says nothing of the target's
LOWEST = -1e9  # a cosine of nothing
NO_STRANGENESS = -1.0  # where there is no cluster
DOUBTFUL = 1 / (1 + math.exp(-1))  # strangeness one temperature beyond the edge: training still takes such a pair
FEWEST_STEPS = 10  # between two clusterings: with fewer, the features have hardly moved
LARGEST_MEMORY = 2**27  # numbers in the memory of prototypes: 512 MiB
MATCHED, CLUSTERED = "matched classes", "clusters"  # names of the images that it wants


class Found(NamedTuple):
    """The images of the last clustering, by cluster and class. On the host, where indices are drawn."""

    clusters: list[np.ndarray]  # target images of each cluster
    classes: list[int]  # that are matched
    source: list[np.ndarray]  # source images of each of these classes
    target: list[np.ndarray]  # target images of the cluster that it is matched to


class Drawn(NamedTuple):
    """A step's images: n of each class or cluster, one class after the other."""

    classes: np.ndarray  # (P,) all different, unless --repeat-classes
    source: np.ndarray  # (P n,) indices
    target: np.ndarray  # (P n,)
    clusters: np.ndarray  # (Z,) the same
    clustered: np.ndarray  # (Z n,)


class DCC(Method):
    card = CARD
    run_only = ("assignment", "source_labels", "rounds", "settled", "agreement")

    memory: Tensor  # (K_max, d) unit rows, zeros where there is no cluster
    matched_class: Tensor  # (K_max,) int64: the class that a cluster is matched to, UNMATCHED or NO_CLUSTER
    assignment: Tensor  # (N_t,) int64: the cluster of each target image
    source_labels: Tensor  # (N_s,) int64
    rounds: Tensor  # () int64: clusterings so far
    settled: Tensor  # () int64: 1 if two of them in a row had the same K, which then stays (published)
    agreement: Tensor  # (T,) consensus scores of each number of clusters, summed over the rounds (steady)
    prototypes: Tensor  # (T, K_max, d) unit centres of all clusterings (steady)
    strangeness: Tensor  # (T, K_max) in 0…1, or NO_STRANGENESS (steady)

    def __init__(self, backbone: Backbone, problem: Problem, options: DCCOptions) -> None:
        super().__init__(backbone, problem, options)
        self.bottleneck = nn.Sequential(
            nn.Linear(self.frame.size, options.bottleneck), nn.BatchNorm1d(options.bottleneck)
        )
        self.num_logits = problem.num_classes + options.unused_logits
        self.classifier = nn.Linear(options.bottleneck, self.num_logits)
        for layer in backbone.modules():
            if isinstance(layer, nn.BatchNorm2d) and layer.affine:  # fixed; only the statistics are the batch's
                layer.requires_grad_(False)
        most = options.clusters_per_class * self.num_logits
        if self.is_steady:
            most = max(most, round(CLUSTERS_PER_ROOT * math.sqrt(problem.num_target)))
        self.max_clusters = max(most, options.cluster_interval)
        self.register_buffer("memory", torch.zeros(self.max_clusters, options.bottleneck))
        self.register_buffer("matched_class", torch.full((self.max_clusters,), NO_CLUSTER))
        self.register_buffer("assignment", torch.zeros(problem.num_target, dtype=torch.int64))
        self.register_buffer("source_labels", torch.zeros(problem.num_source, dtype=torch.int64))
        self.register_buffer("rounds", torch.tensor(0))
        self.register_buffer("settled", torch.tensor(0))
        self.counts = numbers_of_clusters(self.num_logits, most)
        T = len(self.counts) if self.is_steady else 0
        self.register_buffer("agreement", torch.zeros(T))
        self.register_buffer("prototypes", torch.zeros(T, self.max_clusters, options.bottleneck))
        self.register_buffer("strangeness", torch.full((T, self.max_clusters), NO_STRANGENESS))
        self._found: Found | None = None  # kept only to save time: it follows from the buffers

    @property
    def is_steady(self) -> bool:
        return self.options.clustering == "steady"

    def phases(self) -> tuple[Phase]:
        numbers = self.memory.numel() + self.prototypes.numel()
        if numbers > LARGEST_MEMORY:
            raise UserError(
                f"--clusters-per-class {self.options.clusters_per_class} with --bottleneck {self.options.bottleneck} "
                f"needs {numbers * 4 / 2**30:.1f} GiB for prototypes: lower one of them"
            )
        steps, warm_up = self.problem.steps, self.options.warm_up
        every = self.options.cluster_every or max(FEWEST_STEPS, round(steps * 200 / 3000))
        last = (steps - 1) // every * every
        if last < warm_up:
            raise UserError(
                f"--warm-up {warm_up} ends after the last clustering that training uses, at step {last} of {steps}: "
                f"lower it to {last} or less, or train for more --steps"
            )
        return (
            Phase(
                turns=(Turn(self.training_step, self.groups(), decay=3.0),),  # 10 t/10,000 up to t = 3,000 (DCC's code)
                start=self.measure_frame if self.frame.is_on else None,
                # It answers by its clusters: they must be those of the last weights (DCC's code).
                round=Round(self.cluster, every, at_end=True),
                source="shuffled",
                target=False,  # it uses only the target images that it wants
                sweeps=("source", "target"),
            ),
        )

    def features(self, images: Tensor, domain: DomainName = "target") -> Tensor:
        """(B, 3, H, W) → (B, d), the neck."""
        neck: Tensor = self.bottleneck(self.frame(self.backbone(images), domain))
        return neck

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        return self.features(images, "source")

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        # One pass for each domain and purpose: BatchNorm must not mix their statistics.
        losses = {"closed": self._cross_entropy(self.source_features(source.images), source.labels)}
        if MATCHED in source.extra:
            losses |= self._matched_losses(source.extra[MATCHED].images, target.extra[MATCHED].images, step)
        if CLUSTERED in target.extra:
            losses["memory"] = ramp(step, self.problem.steps) * self._memory_loss(target.extra[CLUSTERED].images, step)
        found, device = self.found(), source.labels.device
        self.watched["clusters"] = lambda: torch.tensor(len(found.clusters), device=device)
        self.watched["matched"] = lambda: torch.tensor(len(found.classes), device=device)
        return losses

    def _matched_losses(self, source_images: Tensor, target_images: Tensor, step: int) -> Losses:
        classes = torch.from_numpy(self.drawn(step).classes).to(source_images.device)
        source, target = self.source_features(source_images), self.features(target_images)
        blocks = (len(classes), self.options.images_per_class, -1)
        discrepancy = contrastive_domain_discrepancy(
            source.view(blocks), target.view(blocks), num_matched=len(self.found().classes)
        )
        labels = classes.repeat_interleave(self.options.images_per_class)
        return {
            "discrepancy": self.options.discrepancy_weight * discrepancy,
            "closed_matched": self._cross_entropy(source, labels),  # the source's loss a second time (DCC's code)
        }

    def _memory_loss(self, images: Tensor, step: int) -> Tensor:
        drawn = torch.from_numpy(self.drawn(step).clusters).to(images.device)
        clusters = drawn.repeat_interleave(self.options.images_per_class)
        features = self.features(images)
        K = len(self.found().clusters)
        memory = update_memory(self.memory[:K], features, clusters)
        self.memory[:K] = memory
        return memory_loss(memory, features, clusters, self.options.temperature)

    def _cross_entropy(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(features).float(), labels)

    def wants(self, step: int) -> list[Want]:
        drawn, wants = self.drawn(step), []
        if len(drawn.classes):
            wants += [Want(MATCHED, "source", drawn.source), Want(MATCHED, "target", drawn.target)]
        if len(drawn.clusters):
            wants.append(Want(CLUSTERED, "target", drawn.clustered))
        return wants

    def drawn(self, step: int) -> Drawn:
        """Images of a class or cluster are drawn with repetition, as in DCC's code."""
        found, count, n = self.found(), self.options.classes_per_batch, self.options.images_per_class
        draw = generator(self.problem.seed, MATCHED, step)
        places = self._some(len(found.classes), count, draw)
        source = _some_of_each([found.source[i] for i in places], n, draw)
        target = _some_of_each([found.target[i] for i in places], n, draw)
        draw = generator(self.problem.seed, CLUSTERED, step)
        clusters = self._some(len(found.clusters), count, draw)
        clustered = _some_of_each([found.clusters[k] for k in clusters], n, draw)
        return Drawn(np.array(found.classes, dtype=np.int64)[places], source, target, clusters, clustered)

    def _some(self, groups: int, count: int, draw: np.random.Generator) -> np.ndarray:
        """The groups that a batch shows. DCC's code shuffles many copies of all groups: this repeats some of them."""
        if self.options.repeat_classes and groups:
            return draw.integers(groups, size=count)
        return draw.permutation(groups)[:count]

    def found(self) -> Found:
        if self._found is None:
            assignment, labels = self.assignment.cpu().numpy(), self.source_labels.cpu().numpy()
            class_of = self.matched_class[self.matched_class != NO_CLUSTER].tolist()
            clusters = [np.flatnonzero(assignment == k) for k in range(len(class_of))]
            pairs = sorted((label, k) for k, label in enumerate(class_of) if label != UNMATCHED)
            self._found = Found(
                clusters=clusters,
                classes=[label for label, _ in pairs],
                source=[np.flatnonzero(labels == label) for label, _ in pairs],
                target=[clusters[k] for _, k in pairs],
            )
        return self._found

    @torch.no_grad()
    def cluster(self, step: int, sweep: Sweep) -> None:
        if step < self.options.warm_up:
            return
        source, target, labels = sweep("source"), sweep("target"), sweep.source_labels
        with torch.autocast(source.device.type, enabled=False):  # 16 bits cannot separate near centres
            source, target = F.normalize(source, dim=1), F.normalize(target, dim=1)
            centres = source_centres(source, labels, self.num_logits)
            find = self._clusters_of_all if self.is_steady else self._clusters_of_search
            clusters, pairs = find(source, labels, centres, target)
        K = len(clusters.centres)
        self.settled |= int(len(self.found().clusters) == K)
        self.rounds += 1
        sizes = torch.bincount(clusters.assignment)
        pairs = pairs[sizes[pairs[:, 1]] > self.options.images_per_class]
        self.memory.zero_()[:K] = F.normalize(clusters.centres, dim=1)
        self.matched_class.fill_(NO_CLUSTER)[:K] = UNMATCHED
        self.matched_class[pairs[:, 1]] = pairs[:, 0]
        self.assignment.copy_(clusters.assignment)
        self.source_labels.copy_(labels)
        self._found = None
        log.info("step %d: %d clusters of the target, %d of them matched with classes", step, K, len(pairs))

    def _clusters_of_all(
        self, source: Tensor, labels: Tensor, centres: Tensor, target: Tensor
    ) -> tuple[Clusters, Tensor]:
        """Cluster unit features by every number of clusters. All will answer; training goes on with one of them.

        That is the number whose consensus score, summed over all rounds so far, is the highest: a single round's best
        is chance. Its pairs (P, 2) of class and cluster are those that may be near: what training never draws together
        stays far, so a doubtful pair that is left out would prove itself right (docs/studies/dcc.md).
        """
        self.prototypes.zero_()
        self.strangeness.fill_(NO_STRANGENESS)
        found = []
        for i, clusters in enumerate(cluster_by_each(target, self.counts, self.problem.seed)):
            agreement = consensus(source, labels, centres, target, clusters.assignment, clusters.centres)
            directions = F.normalize(clusters.centres, dim=1)
            sizes = torch.bincount(clusters.assignment)
            strange = strangeness(directions, sizes, centres, self.options.temperature)
            self.prototypes[i, : len(strange)], self.strangeness[i, : len(strange)] = directions, strange
            self.agreement[i] += agreement.score
            found.append((clusters, agreement.pairs[strange[agreement.pairs[:, 1]] < DOUBTFUL]))
        return found[int(self.agreement.argmax())]

    def _clusters_of_search(
        self, source: Tensor, labels: Tensor, centres: Tensor, target: Tensor
    ) -> tuple[Clusters, Tensor]:
        """Cluster unit features by the K that consensus chooses, or from the memory once K is settled (DCC's code)."""
        if self.settled:
            clusters = kmeans_from(target, self.memory[: len(self.found().clusters)])
            agreement = consensus(source, labels, centres, target, clusters.assignment, clusters.centres)
            return clusters, agreement.pairs
        interval = self.options.cluster_interval
        found = search_number_of_clusters(
            source,
            labels,
            centres,
            target,
            start=interval if self.rounds else self.num_logits,
            interval=interval,
            maximum=self.options.clusters_per_class * self.num_logits,
            seed=self.problem.seed,
        )
        return found.clusters, found.consensus.pairs

    def score(self, features: Tensor) -> Scores:
        logits = self.classifier(features).float()[:, : self.num_classes]  # unused logits are no answers
        with torch.autocast(features.device.type, enabled=False):  # as the memory loss compares them
            directions = F.normalize(features.float(), dim=1)
            unknown = self._strange(directions) if self.is_steady else self._unmatched(directions)
        return Scores(logits, unknown)

    def _strange(self, directions: Tensor) -> Tensor:
        """(B, d) → (B,): how strange the clusters are that an image lies in, on average over the clusterings."""
        cosines = (directions @ self.prototypes.flatten(0, 1).T).unflatten(1, self.strangeness.shape)  # (B, T, K_max)
        is_none = self.strangeness == NO_STRANGENESS
        shares = (cosines / self.options.temperature).masked_fill(is_none, LOWEST).softmax(dim=2)
        return (shares * self.strangeness.clamp(min=0)).sum(dim=2).mean(dim=1).clamp(0, 1)

    def _unmatched(self, directions: Tensor) -> Tensor:
        """(B, d) → (B,): how much nearer an unmatched prototype is than a matched one."""
        cosines, never = directions @ self.memory.T, float("-inf")
        matched = cosines.masked_fill(self.matched_class < 0, never).amax(dim=1)
        unmatched = cosines.masked_fill(self.matched_class != UNMATCHED, never).amax(dim=1)
        margin = torch.where(unmatched == never, never, unmatched - matched)  # without clusters, −∞ as well
        unknown = torch.sigmoid(margin / self.options.temperature)
        just_above = self.unknown_threshold + torch.finfo(torch.float32).eps  # rounding must not decide
        return torch.where(margin > 0, unknown.clamp(min=just_above), unknown)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        self._found = None  # it belongs to the old buffers
        if not self.problem.num_target:  # a model that only answers: the file says how many clusters there are
            for name in ("memory", "matched_class", "prototypes", "strangeness"):
                mine, saved = getattr(self, name), state_dict.get(f"{prefix}{name}")
                if saved is not None and saved.ndim == mine.ndim:
                    setattr(self, name, mine.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def numbers_of_clusters(classes: int, most: int) -> list[int]:
    """Above the number of classes, up to the largest number, in equal steps; fewer if they are not all different.

    With as many clusters as classes, classes of the target alone have no cluster of their own.
    """
    return sorted({round(classes + (most - classes) * (i + 1) / CLUSTERINGS) for i in range(CLUSTERINGS)})


def _some_of_each(groups: list[np.ndarray], count: int, draw: np.random.Generator) -> np.ndarray:
    """(G · count,) members of the groups, drawn with repetition."""
    members = [group[draw.integers(len(group), size=count)] for group in groups]
    return np.concatenate([np.empty(0, dtype=np.int64), *members])
