"""The options that say which images a run reads."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from unida.errors import UserError
from unida.support.options import check_numbers, shown

LARGEST_IMAGE = 4096  # pixels of a side: a thousand images of that size are 50 GB


def default_cache() -> Path:
    """Where decoded images are kept: $UNIDA_CACHE, or the user's cache folder."""
    if "UNIDA_CACHE" in os.environ:
        return Path(os.environ["UNIDA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "unida"


def usable_cache(cache: Path) -> Path:
    """Another cache if this one cannot be written: the run came from another machine."""
    return cache if os.access(cache, os.W_OK) else default_cache()


@dataclass(frozen=True)
class DataOptions:
    source: Annotated[Path | None, shown("DIR")] = None
    """Labelled images: one sub-folder per class."""
    target: Annotated[Path | None, shown("DIR")] = None
    """Unlabelled images: any folder, flat or nested."""
    target_labels: bool = False
    """The target's sub-folders are its true classes. Used for evaluation, never for training."""
    benchmark: Annotated[str | None, shown("NAME", "(see: unida data list)")] = None
    """Use a benchmark instead of two folders."""
    root: Annotated[Path | None, shown("DIR")] = None
    """The benchmark's folder."""
    pair: Annotated[str | None, shown("SOURCE:TARGET", "(for example amazon:dslr)")] = None
    """The benchmark's two domains."""
    setting: str = "unida"
    """The benchmark's label sets: cda, pda, osda, unida, or a named variant such as osda:ros."""
    source_without: Annotated[str | None, shown("NAME/NAME/…", "(default: none)")] = None
    """Leave these classes out of the source: names of its sub-folders, with / between them."""
    target_without: Annotated[str | None, shown("NAME/NAME/…", "(default: none)")] = None
    """Leave these sub-folders, or classes of a benchmark, out of the target: as if they had never been there."""
    resize: Literal["squash", "short"] = "squash"
    """squash: resize to a square (OVANet); short: resize the short side and keep the aspect ratio (DCC)."""
    image_size: int = 256
    """Resize images to this side in pixels."""
    crop: int = 224
    """Side in pixels of the crop that the network gets."""
    duplicates: Literal["error", "drop", "keep"] = "error"
    """Refuse, drop or keep files of the same content, in one folder or in both (benchmarks always keep them)."""
    min_images_per_class: int = 2
    """Refuse a source class with fewer images."""
    strict: bool = False
    """Stop at the first image that cannot be read. Without it, such images are skipped and listed."""
    cache: Path = field(default_factory=default_cache)
    """Keep decoded images and features here, for later runs."""

    def check(self) -> None:
        check_numbers(self, "image_size", "crop", least=1, most=LARGEST_IMAGE)
        check_numbers(self, "min_images_per_class", least=1)
        if self.crop > self.image_size:
            raise UserError(
                f"--crop {self.crop} is larger than --image-size {self.image_size}: lower --crop, or raise --image-size"
            )
