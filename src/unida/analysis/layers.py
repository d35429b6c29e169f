"""`unida analyze layers`: NTR, DIS and PAS at every tap of a backbone, as in the SPA paper's first figure.

An analysis, not a part of any run. If the target has labels, NTR uses them. A training run must not use the tap that
Definition 1 picks from this NTR. It may use the tap picked from the source's NTR, which needs no target labels.
"""

import json
import logging
from dataclasses import asdict, dataclass

import torch

from unida.analysis.figure import can_draw, draw_curves
from unida.analysis.images import StudiedImages, images_to_study
from unida.analysis.measures import choose_tap
from unida.analysis.options import LayerOptions
from unida.analysis.taps import TapMeasures, digests, features_at_taps, measure_tap
from unida.config import Config, check, complete, config_class
from unida.data.augment import Preprocess
from unida.data.domains import open_domains
from unida.data.options import DataOptions
from unida.evaluation.truth import read_truth
from unida.models.backbone import open_backbone, refuse_crop
from unida.models.options import ModelOptions
from unida.support.files import write_text
from unida.support.memory import keep_freed_memory
from unida.support.processes import open_fabric_for_answers
from unida.support.progress import progress
from unida.training.options import TrainingOptions

log = logging.getLogger("unida")


@dataclass(frozen=True)
class LayerStudy:
    """The measures at every tap, shallow to deep, and what Definition 1 picks."""

    backbone: str
    source_images: int
    target_images: int
    taps: list[TapMeasures]
    chosen: str | None  # by NTR, with target labels
    chosen_without_labels: str | None  # by the source's NTR


def study_layers(options: LayerOptions, visible: bool = True) -> LayerStudy:
    """Run both domains through the backbone once, then take every measure at every tap."""
    keep_freed_memory()
    device = open_fabric_for_answers().device
    config = _checked(options, has_gpu=device.type != "cpu")
    images = _open(config.data, options, visible)
    with torch.random.fork_rng():
        backbone = open_backbone(config.model.backbone, config.model.weights, options.seed)
    backbone.to(device).to(memory_format=torch.channels_last)
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, device)
    refuse_crop(backbone, config.data.crop)
    source = features_at_taps(backbone, images.source, preprocess, "source", options.seed, visible)
    target = features_at_taps(backbone, images.target, preprocess, "target", options.seed, visible)
    which = (digests(images.source), digests(images.target))
    rows = []
    with progress("measures", len(backbone.taps), visible=visible) as report:
        for number, tap in enumerate(backbone.taps, start=1):
            labels, is_private = images.source_labels, images.target_is_private
            row = measure_tap(tap, source[tap], labels, target[tap], which, is_private, options.words, options.seed)
            rows.append(row)
            report(number, tap)
    return LayerStudy(
        backbone=config.model.backbone,
        source_images=len(images.source),
        target_images=len(images.target),
        taps=rows,
        chosen=_chosen(rows, [row.ntr for row in rows]),
        chosen_without_labels=_chosen(rows, [row.source_ntr for row in rows]),
    )


def _open(data: DataOptions, options: LayerOptions, visible: bool) -> StudiedImages:
    source, target = open_domains(data, visible)
    truth = read_truth(data, target, source.classes, visible)
    return images_to_study(source, target, truth, options.max_images, options.max_images, options.seed)


def study_lines(study: LayerStudy) -> list[str]:
    """The study as a table, shallow to deep, and the taps that Definition 1 picks."""
    width = max(len("tap"), *(len(row.tap) for row in study.taps))
    lines = [
        f"{study.backbone}: {study.source_images} source images, {study.target_images} target images",
        "",
        f"{'tap':{width}}  channels    NTR  source NTR    DIS    PAS",
    ]
    for row in study.taps:
        ntr, source_ntr = ("–" if value is None else f"{value:.3f}" for value in (row.ntr, row.source_ntr))
        lines.append(f"{row.tap:{width}}  {row.channels:8}  {ntr:>5}  {source_ntr:>10}  {row.dis:.3f}  {row.pas:.3f}")
    lines.append("")
    if study.chosen is not None:
        lines.append(f"Definition 1 picks {study.chosen} (by NTR, which uses target labels)")
    if study.chosen_without_labels is not None:
        lines.append(f"Definition 1 picks {study.chosen_without_labels} (by the source's NTR, without target labels)")
    return lines


def write_study(study: LayerStudy, options: LayerOptions) -> None:
    """layers.json and, with matplotlib, layers.png."""
    options.out.mkdir(parents=True, exist_ok=True)
    if can_draw():
        draw_curves(study.taps, study.chosen or study.chosen_without_labels, options.out / "layers.png")
    else:
        log.warning("layers.png is not drawn: it needs matplotlib (pip install 'unida[plot]')")
    settings = {"words": options.words, "max_images": options.max_images, "seed": options.seed}
    write_text(options.out / "layers.json", json.dumps({**asdict(study), **settings}, indent=2) + "\n")


def _checked(options: LayerOptions, has_gpu: bool) -> Config:
    """The options as a run's config, which checks them."""
    options.check()
    model = ModelOptions(backbone=options.backbone, weights=options.weights)
    training = TrainingOptions(seed=options.seed)  # nothing is trained; any method would do
    config = config_class(training.method)(data=options.data, model=model, training=training)  # type: ignore[call-arg]
    return complete(check(config), has_gpu)


def _chosen(rows: list[TapMeasures], risks: list[float | None]) -> str | None:
    known = [risk for risk in risks if risk is not None]
    return rows[choose_tap(known, [row.dis for row in rows])].tap if len(known) == len(rows) else None
