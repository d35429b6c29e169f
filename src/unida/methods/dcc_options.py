"""The card and options of DCC."""

from dataclasses import dataclass
from typing import Literal

from unida.methods.card import Card
from unida.support.options import LARGEST_INTEGER, check_numbers


@dataclass(frozen=True)
class DCCOptions:
    clustering: Literal["steady", "published"] = "steady"
    """How the target is clustered and answered. steady: by five numbers of clusters, and how near a cluster is to a
    class. published: by one number, found by DCC's search, and whether a cluster is matched."""
    bottleneck: int = 256
    """Size of the feature that is clustered (DCC's code)."""
    discrepancy_weight: float = 0.1
    """λ, weight of the contrastive domain discrepancy (DCC's code, all data sets)."""
    temperature: float = 0.1
    """Temperature of the softmax over prototypes (DCC, paper and code)."""
    classes_per_batch: int = 10
    """Matched classes, and clusters, in a step (DCC's code: 10 for Office-31, 6 for Office-Home)."""
    images_per_class: int = 3
    """Images of each, per domain; a matched cluster has more than that (DCC's code: Office-31 3, Office-Home 6)."""
    cluster_interval: int = 2
    """Step of the published search for the number of clusters (DCC's code: 2 for Office-31, 5 for Office-Home)."""
    clusters_per_class: int = 3
    """Up to this many clusters per source class (DCC's code: 3 for Office-31, 5 for Office-Home). steady: or up to
    twice the root of the number of target images, if that is more."""
    cluster_every: int = 0
    """Steps between two clusterings; 0: a fifteenth of the run, at least 10 (DCC's code: 200 of 3,000)."""
    repeat_classes: bool = False
    """Draw classes and clusters with repetition, as DCC's code does; CDD then pushes a class away from itself."""
    unused_logits: int = 0
    """Add this many classes without images; the search counts them (DCC's code: 10 in Office-31's OSDA, else 0)."""
    warm_up: int = 0
    """Steps on the source alone, up to the next clustering (DCC's code: 0 for Office-31, 400 for Office-Home)."""

    def check(self) -> None:
        check_numbers(self, "bottleneck", least=1, most=65_536)
        # BatchNorm needs two different images: a cluster may hold one, and a batch may show one class.
        check_numbers(self, "classes_per_batch", "images_per_class", least=2, most=10_000)
        check_numbers(self, "cluster_interval", least=1, most=LARGEST_INTEGER)
        check_numbers(self, "clusters_per_class", least=1, most=1_000)
        check_numbers(self, "unused_logits", least=0, most=100_000)
        check_numbers(self, "cluster_every", "warm_up", least=0, most=LARGEST_INTEGER)
        check_numbers(self, "temperature", above=0)
        check_numbers(self, "discrepancy_weight", least=0)


CARD = Card(
    name="dcc",
    title="Clusters of the target that agree with classes of the source; the others are unknown",
    paper="Li et al., Domain Consensus Clustering, CVPR 2021",
    settings="CDA, PDA, OSDA, UniDA",
    Options=DCCOptions,
    code="unida.methods.dcc:DCC",
    lr=1e-3,  # 10 η; the backbone's is η = 1e-4 (DCC's code: Office-31; Office-Home and DomainNet have 1e-3)
    steps=3_000,  # (DCC's code)
)
