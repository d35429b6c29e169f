"""The map of a report: source and target images in one plane, near each other if their features are alike."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unida.answering.together import centred
from unida.data.settings import UNKNOWN
from unida.reports import charts
from unida.reports.looking import SomeSource, principal_plane, some
from unida.reports.pictures import TileSheet, tile_sheet
from unida.reports.rundata import NOT_KNOWN, RunData
from unida.runs.looking import Model

MOST_TARGET = 700  # images on the map


@dataclass(frozen=True)
class MapSection:
    figure: charts.Figure
    sheet: TileSheet
    shown_source: int
    shown_target: int


def draw_map(data: RunData, model: Model, source: SomeSource | None) -> MapSection:
    """PCA of the features of some images of both domains, or of the target's alone."""
    target, directions, centre = _target_directions(data, model)
    answers = data.answers[target]
    paths = [data.paths[row] for row in target]
    titles = [f"target: {Path(data.paths[row]).name}, answer {data.answer_name(data.answers[row])}" for row in target]
    is_source = np.zeros(len(target), dtype=bool)
    shown_source = 0
    if source is not None:
        directions = torch.cat([directions, centred(model.directions(source.pixels), centre)])
        answers = np.concatenate([answers, [data.classes.index(name) for name in source.names]])
        files = source.pixels.files
        paths += [str(file.path) for file in files]
        titles += [f"source: {file.path.name}, class {name}" for file, name in zip(files, source.names, strict=True)]
        is_source = np.concatenate([is_source, np.ones(len(files), dtype=bool)])
        shown_source = len(files)
    plane = principal_plane(directions).numpy()
    figure = charts.feature_map(plane, is_source, answers, [*data.classes, UNKNOWN], titles)
    return MapSection(figure, tile_sheet(paths), shown_source, len(target))


def _target_directions(data: RunData, model: Model) -> tuple[np.ndarray, Tensor, Tensor]:
    """Some rows of the target's images, their centred directions, and the centre: those that the run has kept."""
    kept = None if data.answered is None else data.answered.kept
    if kept is not None and data.answered is not None and len(kept.directions) == len(data.answered.digests):
        there = np.flatnonzero(data.row_of_kept != NOT_KNOWN)
        rows = there[some(len(there), MOST_TARGET, "target on the map")]
        if len(rows):
            return rows, kept.directions[torch.from_numpy(data.row_of_kept[rows])].float(), kept.centre.float()
    rows = some(len(data), MOST_TARGET, "target on the map")
    pixels = model.pixels([data.paths[row] for row in rows])
    row_of = {data.paths[row]: row for row in rows}
    directions = model.directions(pixels)
    centre = directions.mean(dim=0) if kept is None else kept.centre.float()
    return np.array([row_of[str(file.path)] for file in pixels.files]), centred(directions, centre), centre
