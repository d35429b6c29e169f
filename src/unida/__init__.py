"""Universal domain adaptation of image classifiers.

run = unida.adapt(source="photos/labelled", target="photos/new", out="runs/first")
for path, label, probability, unknown_score in run.predict("photos/more"):
    ...
"""

from typing import TYPE_CHECKING, Any

from unida.errors import UserError

if TYPE_CHECKING:
    from unida.api import Run, adapt, load
    from unida.evaluation.predict import Prediction
    from unida.grids.api import GridResults, grid

__version__ = "0.1.0"
__all__ = ["GridResults", "Prediction", "Run", "UserError", "adapt", "grid", "load"]


def __getattr__(name: str) -> Any:
    """Imports torch only when it is needed: `unida --help` answers at once."""
    if name in ("Run", "adapt", "load"):
        from unida import api

        return getattr(api, name)
    if name in ("GridResults", "grid"):
        from unida.grids import api as grids

        return getattr(grids, name)
    if name == "Prediction":
        from unida.evaluation.predict import Prediction

        return Prediction
    raise AttributeError(f"module 'unida' has no attribute {name!r}")
