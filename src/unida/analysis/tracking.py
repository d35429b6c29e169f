"""`--track`: NTR, DIS and PAS of a method while it trains, beside the metrics of every evaluation.

Never part of training: nothing here reaches a loss, and a run takes the same steps with it and without. NTR uses
target labels, as evaluation does.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unida.analysis.images import images_to_study
from unida.analysis.measures import (
    domain_invariance_score,
    negative_transfer_risk,
    refuse_few_images,
)
from unida.analysis.taps import digests
from unida.data.domains import Source, Target
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.evaluation.truth import Truth
from unida.features.inputs import Inputs
from unida.methods.base import Method
from unida.support.fabric import Fabric
from unida.training.batches import over_test_views

IMAGES = 300  # of each domain, so that a measure takes seconds
IMAGES_PER_CLASS = 5  # of the source, if that is more: the probe of NTR must know every class


class Tracking:
    """Measures the same images at every evaluation: other images would give other numbers.

    Args:
        names: "dis"; "ntr", which needs the truth; or one of the method's own `measures`.
    """

    def __init__(self, names: tuple[str, ...], source: Source, target: Target, truth: Truth | None, seed: int) -> None:
        self.names, self.seed = names, seed
        of_source = max(IMAGES, IMAGES_PER_CLASS * len(source.classes))
        self.images = images_to_study(source, target, truth, of_source, IMAGES, seed)
        if "dis" in names:
            try:
                refuse_few_images(digests(self.images.source), digests(self.images.target))
            except UserError as error:  # now, and not in the middle of the run
                raise UserError(f"--track dis: {error}; leave dis out") from error

    def measure(self, method: Method, inputs: Inputs, fabric: Fabric) -> dict[str, float]:
        """The measures by name, of test views and the method's own feature vectors."""
        found: dict[str, float] = {}
        images = self.images
        for name, compute in method.measures().items():
            if name in self.names:
                found[name] = float(_of_all(method, compute, images.target, inputs, fabric).mean())
        if "ntr" in self.names or "dis" in self.names:
            source = _of_all(method, method.features, images.source, inputs, fabric)
            target = _of_all(method, method.features, images.target, inputs, fabric)
            found |= self._of_features(source, target)
        return {name: found[name] for name in self.names}

    def _of_features(self, source: Tensor, target: Tensor) -> dict[str, float]:
        found, images = {}, self.images
        if "ntr" in self.names:
            assert images.target_is_private is not None
            classes, labels = torch.unique(images.source_labels, return_inverse=True)
            found["ntr"] = negative_transfer_risk(source, labels, target, images.target_is_private, len(classes))
        if "dis" in self.names:
            which = digests(images.source), digests(images.target)
            found["dis"] = domain_invariance_score(source, target, self.seed, *which)
        return found


def tracked_note(measures: Mapping[str, float]) -> str:
    """The measures as text for the log."""
    return "  ".join(f"{name.upper()} {value:.3f}" for name, value in measures.items())


@torch.no_grad()
def _of_all(
    method: Method, compute: Callable[[Tensor], Tensor], pixels: Pixels, inputs: Inputs, fabric: Fabric
) -> Tensor:
    """(N, …) float32 on the host: the result of `compute` for the test view of each image, in evaluation mode."""
    was_training = method.training
    method.eval()
    with fabric.autocast():
        rows = over_test_views(compute, pixels, inputs).cpu()
    method.train(was_training)
    return rows
