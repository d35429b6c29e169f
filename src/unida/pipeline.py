"""A run from options to answers: data, training, evaluation, in this order."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
from lightning_fabric import Fabric

from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.domains import Source, Target, open_domains
from unida.errors import UserError
from unida.evaluation.answers import Answers, answer_pixels
from unida.evaluation.metrics import OpenSetResult, open_set_metrics
from unida.evaluation.predict import Predictions, name_answers
from unida.evaluation.truth import Truth, read_truth
from unida.methods.base import Method
from unida.modelfile import build_method, save_model
from unida.runfolder import claim_folder
from unida.summary import describe_end, describe_start, summary_line, write_metrics, write_skipped
from unida.training.logging import logging_to
from unida.training.loop import BatchStream, Training, peak_memory_bytes

log = logging.getLogger("unida")
T = TypeVar("T")


@dataclass(frozen=True)
class _Domains:
    source: Source
    target: Target
    truth: Truth | None  # for evaluation; never handed to a method


def execute(config: Config) -> Path:
    """Carry out a run, or the rest of one that was interrupted."""
    training = config.training
    fabric = Fabric(
        accelerator=training.accelerator,
        devices=training.devices,
        num_nodes=training.num_nodes,
        precision=training.precision,
    )
    fabric.launch()
    claim = _main_process_first(fabric, lambda: claim_folder(config, fabric.device.type != "cpu"), again=False)
    config, folder = claim.config, claim.folder
    with logging_to(folder if fabric.is_global_zero else None):
        try:
            domains = _main_process_first(fabric, lambda: _open_all(config, fabric.is_global_zero))
        except UserError:
            claim.release()
            raise
        if fabric.is_global_zero:
            describe_start(config, domains.source, domains.target, str(fabric.device))
        with torch.random.fork_rng():
            method = build_method(config, len(domains.source.classes))
            _train_and_report(fabric, method, domains, config, folder)
    return folder


def _main_process_first(fabric: Fabric, work: Callable[[], T], again: bool = True) -> T:
    """The main process works first (it fills the caches), the others after it; a user's error stops them all.

    Args:
        again: the other processes do the same work; otherwise they receive its result.
    """
    if fabric.world_size == 1:
        return work()
    result, error = None, None
    if fabric.is_global_zero:
        try:
            result = work()
        except UserError as exception:
            error = str(exception)
    result_for_others = None if again else result
    error, received = fabric.broadcast((error, result_for_others))
    if error is not None:
        raise UserError(error)
    if fabric.is_global_zero:
        received = result
    elif again:
        received = work()
    return cast(T, received)


def _open_all(config: Config, visible: bool) -> _Domains:
    source, target = open_domains(config.data, visible)
    return _Domains(source, target, read_truth(config.data, target, source.classes, visible))


def _train_and_report(fabric: Fabric, method: Method, domains: _Domains, config: Config, folder: Path) -> None:
    started = time.monotonic()
    backbone = method.backbone
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, fabric.device)

    def evaluate(step: int) -> dict[str, float | None]:
        assert domains.truth is not None
        _, result = evaluate_method(fabric, method, domains.truth, preprocess)
        log.info("step %d: %s", step, summary_line(result))
        return result.scalars()

    stream = BatchStream(domains.source, domains.target, preprocess, config, fabric)
    training = Training(fabric, method, stream, config, folder, evaluate if domains.truth is not None else None)
    training.run()
    if fabric.is_global_zero:
        save_model(folder / "checkpoint" / "model.safetensors", method, config, domains.source.classes)
    facts = {
        "steps": config.training.steps,
        "images_per_second": training.images_per_second(),
        "peak_memory_bytes": peak_memory_bytes(fabric.device),
        "seconds": time.monotonic() - started,
    }
    if domains.truth is not None:
        answers, result = evaluate_method(fabric, method, domains.truth, preprocess)
        pixels = domains.truth.pixels
    else:
        pixels, result = domains.target.pixels, None
        answers = answer_pixels(method, pixels, preprocess, fabric)
    if fabric.is_global_zero:
        skipped = (*domains.source.skipped, *domains.target.skipped)
        Predictions(name_answers(answers, pixels, domains.source.classes), domains.target.skipped).write_csv(
            folder / "predictions.csv"
        )
        write_skipped(folder / "skipped.csv", skipped)
        write_metrics(folder, result, facts, config)
        describe_end(folder, result, answers, facts, len(domains.source.classes))
    fabric.barrier()


def evaluate_method(
    fabric: Fabric, method: Method, truth: Truth, preprocess: Preprocess, visible: bool = True
) -> tuple[Answers, OpenSetResult]:
    """One pass over the labelled target: the answers, and every metric of them."""
    answers = answer_pixels(method, truth.pixels, preprocess, fabric, visible=visible)
    result = open_set_metrics(
        torch.from_numpy(truth.labels),
        answers.prediction,
        answers.closed,
        answers.unknown_score,
        method.num_classes,
        truth.names,
    )
    return answers, result
