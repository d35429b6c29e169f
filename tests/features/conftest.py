"""A backbone with a frozen stem, and pictures for it."""

from pathlib import Path

import pytest
import torch
from tiny_shelf import pixels_of

from unida.data.glyphs import write_glyphs
from unida.data.pixels import Pixels
from unida.models.backbone import Backbone, create_backbone


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", "none")
    backbone.freeze("layer2", torch.float16)
    return backbone


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    write_glyphs(folder, shared=2, source_private=1, target_private=1, per_class=3, size=40)
    return folder


@pytest.fixture
def pixels(folders: Path, tmp_path: Path) -> Pixels:
    return pixels_of(folders / "source", tmp_path)
