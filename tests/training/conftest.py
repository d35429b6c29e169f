"""Fixtures of the training tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_fabric import Fabric
from PIL import Image
from tiny_training import MakeMethod, StartRun, Tiny, inputs_of, make_config, make_method

from unida.data.domains import Source, Target
from unida.data.folders import scan
from unida.data.pixels import Pixels, decode_in_memory
from unida.training.batches import BatchStream
from unida.training.loop import Training


@pytest.fixture(scope="session")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    folder = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(0)
    for i in range(15):
        Image.fromarray(rng.integers(0, 256, (10, 10, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return decode_in_memory(scan(folder)[0], "squash", 10)


@pytest.fixture
def start(pixels: Pixels, tmp_path: Path) -> StartRun:
    """Build a `Training`: `start(kind=Tiny, folder="run", wrap=…, evaluate=…, **options)`."""

    def start_run(
        kind: MakeMethod = Tiny,
        folder: str = "run",
        wrap: Callable[[Fabric], Any] = lambda fabric: fabric,
        evaluate: Callable[[int], dict[str, float | None]] | None = None,
        **options: Any,
    ) -> Training:
        config = make_config(**options)
        fabric = wrap(Fabric(accelerator="cpu", devices=1, precision=config.training.precision))
        source = Source(pixels.subset(np.arange(9)), np.arange(9) % 3, ("a", "b", "c"))
        target = Target(pixels.subset(np.arange(9, 15)))
        method = make_method(kind, config.training.steps or 0, config.training.seed)
        stream = BatchStream(source, target, inputs_of(), config, fabric, method.recipes)
        (tmp_path / folder).mkdir(exist_ok=True)
        return Training(fabric, method, method.phases(), stream, config, tmp_path / folder, evaluate)

    return start_run
