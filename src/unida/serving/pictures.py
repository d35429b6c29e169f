"""Pictures of the run's source and target beside an answer. They have ids: no request can name a file."""

import io
import logging
import os
import threading
from collections import defaultdict
from functools import lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from unida.answering.together import centred
from unida.data.benchmarks import domain_files
from unida.data.folders import scan, scan_listed
from unida.data.images import BadImage, read_rgb
from unida.data.listed import read_skipped, used_source
from unida.data.pairs import benchmark_pair
from unida.errors import UserError
from unida.serving.model import Answer, Picture, ServedModel
from unida.support.random import generator

log = logging.getLogger("unida")

MOST_SOURCE = 2000  # images of the source among which the nearest are looked for
AT_ONCE = 4  # of them are looked at between two batches: a request waits no longer
SIDE = 160  # pixels of a small picture
SHOWN = 5  # of the nearest


class Near(NamedTuple):
    """A picture beside an answer."""

    id: str
    text: str  # its class in the source, or the run's answer for it in the target
    weight: float  # how much say it had, or its cosine


class _Listed(NamedTuple):
    path: Path
    class_name: str


class Pictures:
    """The small pictures, found and looked at in the background. Until then, and if files are gone, there are none."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._target: dict[str, Path] = {}  # by digest
        self._source: list[_Listed] = []
        self._is_listed = threading.Event()
        self._looked_at = 0  # source images, also those that cannot be read
        self._places: list[int] = []  # of the source images in `_rows`
        self._rows: list[Tensor] = []
        self._directions: Tensor | None = None  # (M, d), when all have been looked at
        self._small = lru_cache(maxsize=512)(_small_picture)

    @property
    def progress(self) -> tuple[int, int]:
        """Source images that have been looked at, and all of them; (0, 0) before they are listed."""
        return self._looked_at, len(self._source)

    @property
    def is_ready(self) -> bool:
        return self._is_listed.is_set() and self._looked_at == len(self._source)

    def list_files(self) -> None:
        """Find the files of both domains. It may read all of them: for a thread of its own."""
        for name, find in (("target", self._list_target), ("source", self._list_source)):
            try:
                find()
            except (UserError, OSError) as error:
                log.warning("no pictures of the %s beside answers: %s", name, error)
        self._is_listed.set()

    def _list_target(self) -> None:
        options = self._model.config.data
        cache = options.cache if os.access(options.cache, os.W_OK) else None
        pair = benchmark_pair(options)
        if pair is not None:
            paths = [path for path, _ in domain_files(pair.benchmark, pair.root, pair.target, "adapt")]
            files, _ = scan_listed(paths, pair.root, cache_dir=cache)
        else:
            assert options.target is not None
            files, _ = scan(options.target, cache_dir=cache)
        self._target = {file.digest: file.path for file in files}

    def _list_source(self) -> None:
        """A sample in which every class has its share, in a fixed order."""
        options, skipped = self._model.config.data, read_skipped(self._model.folder / "skipped.csv")
        cache = options.cache if os.access(options.cache, os.W_OK) else None
        found = used_source(options, self._model.info.classes, [path for path, _ in skipped], cache)
        by_class: dict[str, list[_Listed]] = defaultdict(list)
        order = generator(0, "source pictures").permutation(len(found))
        for path, name in (found[i] for i in order.tolist()):
            if path.exists():
                by_class[name].append(_Listed(path, name))
        turns = chain.from_iterable(zip_longest(*(by_class[name] for name in sorted(by_class))))
        self._source = [one for one in turns if one is not None][:MOST_SOURCE]

    def look_at_some(self) -> bool:
        """A few more source images through the network. False if there is nothing to do."""
        if not self._is_listed.is_set() or self.is_ready:
            return False
        places = range(self._looked_at, min(self._looked_at + AT_ONCE, len(self._source)))
        pictures = [(place, picture) for place in places if (picture := self._decode(place)) is not None]
        if pictures:
            scored, _ = self._model.score([picture for _, picture in pictures])
            self._rows.append(scored.directions)
            self._places += [place for place, _ in pictures]
        if places.stop == len(self._source) and self._rows:
            rows = torch.cat(self._rows).float()
            self._rows.clear()
            # The target's images are centred by the target's mean, so the source's are by their own: what all images
            # of a domain have in common would hide what they show.
            self._directions = centred(rows, rows.mean(dim=0)) if self._model.kept is not None else rows
        self._looked_at = places.stop
        return True

    def _decode(self, place: int) -> Picture | None:
        try:
            data = self._source[place].path.read_bytes()
            return self._model.decode(f"source {place}", data, most_pixels=10**9)
        except (OSError, BadImage):
            return None

    def near_source(self, answer: Answer) -> list[Near]:
        """The nearest source images, if all have been looked at."""
        if self._directions is None:
            return []
        cosines = self._directions @ answer.direction
        best = cosines.topk(min(SHOWN, len(cosines)))
        near = []
        for row, cosine in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            one = self._source[self._places[row]]
            if one.path.exists():
                near.append(Near(f"source-{self._places[row]}", one.class_name, round(cosine, 4)))
        return near

    def near_target(self, answer: Answer) -> list[Near]:
        """The target images that had the most say."""
        model, near = self._model, []
        for place, weight in answer.says:
            path = self._target.get(_digest(model, place))
            if path is not None and path.exists():
                near.append(Near(f"target-{place}", model.answer_of_target(place), round(weight, 4)))
            if len(near) == SHOWN:
                break
        return near

    def small(self, picture: str) -> bytes | None:
        """A small JPEG of a picture by its id, or None."""
        domain, _, number = picture.partition("-")
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            return None
        place, path = int(number), None
        if domain == "source" and place < len(self._source):
            path = self._source[place].path
        elif domain == "target" and place < len(self._model.answered.digests):
            path = self._target.get(_digest(self._model, place))
        try:
            return None if path is None else self._small(path)
        except BadImage:
            return None


def _digest(model: ServedModel, place: int) -> str:
    return bytes(model.answered.digests[place].tolist()).hex()


def _small_picture(path: Path) -> bytes:
    image = read_rgb(path)
    image.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    return stream.getvalue()
