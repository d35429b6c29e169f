"""Lightning Fabric, without what it loads in vain.

Its import asks for torchmetrics' version by importing it, and torchmetrics imports every metric there is, with all that
they need: two of the ten seconds until a run starts. Nothing of Fabric that is used here needs it.
"""

import sys


def _hide(name: str) -> None:
    """Import Fabric as if that package were not installed."""
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import lightning_fabric  # noqa: F401
    finally:
        del sys.modules[name]


_hide("torchmetrics")

from lightning_fabric import Fabric  # noqa: E402
from lightning_fabric.strategies import DDPStrategy  # noqa: E402

__all__ = ["DDPStrategy", "Fabric"]
