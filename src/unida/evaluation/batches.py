"""The metrics over batches and processes, for loops of your own. Runs do without: torchmetrics is slow to load."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from unida.evaluation.metrics import OpenSetResult, open_set_metrics, require_vectors


class OpenSetMetrics(Metric):
    """`open_set_metrics` over batches and processes.

    Each process may see any number of images, even none; `compute` gathers them all, so every process returns
    the same result. Inputs are moved to the metric's device; call `.to(device)` if the process group needs that.

    Args:
        n_source_classes: C.
        class_names: names by id for the table, of the source classes or of those and the private ones.
        kwargs: options of `torchmetrics.Metric`.

    Example:
        >>> metrics = OpenSetMetrics(n_source_classes=2)
        >>> truth, score = torch.tensor([0, 0, 1, 2]), torch.tensor([0.1, 0.7, 0.2, 0.9])
        >>> metrics.update(truth, torch.tensor([0, 2, 1, 2]), torch.tensor([0, 0, 1, 1]), score)
        >>> result = metrics.compute()
        >>> result.known, result.unknown, result.auroc
        (0.75, 1.0, 1.0)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    truth: list[Tensor]
    prediction: list[Tensor]
    closed: list[Tensor]
    unknown_score: list[Tensor]

    _state_dtypes = {  # noqa: RUF012 - never changed
        "truth": torch.int64,
        "prediction": torch.int64,
        "closed": torch.int64,
        "unknown_score": torch.float64,
    }

    def __init__(self, n_source_classes: int, class_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n_source_classes = n_source_classes
        self.class_names = class_names
        for name in self._state_dtypes:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, truth: Tensor, prediction: Tensor, closed: Tensor, unknown_score: Tensor) -> None:
        """Keep one batch: four (B,) tensors as in `open_set_metrics`; `compute` checks the values."""
        batch = {"truth": truth, "prediction": prediction, "closed": closed, "unknown_score": unknown_score}
        require_vectors(**batch)  # now: different lengths of batches may add up to equal ones
        for name, values in batch.items():
            # device before dtype: not every device knows float64
            getattr(self, name).append(values.detach().to(self.device).to(self._state_dtypes[name]))

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the states of all processes, as `torchmetrics.Metric.sync`.

        A process without images would send float32 while the others send int64: give it empty states first.
        """
        for name, dtype in self._state_dtypes.items():
            state = getattr(self, name)
            if isinstance(state, list) and not state:
                state.append(torch.empty(0, dtype=dtype, device=self.device))
        super().sync(*args, **kwargs)

    def compute(self) -> OpenSetResult:
        """The metrics of all images seen by all processes."""
        states = {name: dim_zero_cat(getattr(self, name)) for name in self._state_dtypes}
        return open_set_metrics(**states, n_source_classes=self.n_source_classes, class_names=self.class_names)
