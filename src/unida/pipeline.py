"""A run from options to answers: data, training, evaluation, in this order."""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor

from unida.analysis.auto_tap import choose_taps, has_open_tap, with_taps
from unida.analysis.tracking import Tracking, tracked_note
from unida.config import Config, config_from_yaml, config_to_yaml, tracked
from unida.data.augment import Inputs, Preprocess
from unida.data.domains import Source, Target, open_domains
from unida.data.show import show_answers
from unida.errors import UserError
from unida.evaluation.answers import Answers, answer_pixels
from unida.evaluation.metrics import OpenSetResult, open_set_metrics
from unida.evaluation.predict import Predictions, name_answers
from unida.evaluation.truth import Truth, read_truth
from unida.methods import METHODS
from unida.methods.base import Method
from unida.methods.spa import SPA
from unida.methods.spa_options import leaves_parameters_unused
from unida.modelfile import build_method, save_model
from unida.models.backbone import POOLED, refuse_crop
from unida.models.features import TEST_VIEW, FeatureInputs
from unida.models.shelf import stem_of
from unida.processes import main_process_first, open_fabric, share_buffers, told_by_main_process
from unida.runfolder import Claim, claim_folder, is_finished, keep_config
from unida.summary import describe_end, describe_start, summary_line, write_metrics, write_skipped
from unida.training.batches import BatchStream
from unida.training.logging import logging_to
from unida.training.loop import Training
from unida.training.memory import keep_freed_memory, peak_memory_bytes

log = logging.getLogger("unida")


@dataclass(frozen=True)
class _Domains:
    source: Source
    target: Target
    truth: Truth | None  # for evaluation; never handed to a method


def execute(config: Config) -> Path:
    """Carry out a run, or the rest of one that was interrupted."""
    fabric = open_fabric(config.training, leaves_parameters_unused(config.spa))
    fabric.launch()
    keep_freed_memory()
    is_main = fabric.is_global_zero
    claim = _claim_for_all(config, fabric)
    try:
        if not is_finished(claim.folder):
            with logging_to(claim.folder if is_main else None, visible=is_main), torch.random.fork_rng():
                _carry_out(claim, fabric)
        elif is_main:
            log.info("the run in %s is finished", claim.folder)
        fabric.barrier()
    finally:
        if is_main:
            claim.unlock()
    return claim.folder


def _carry_out(claim: Claim, fabric: Fabric) -> None:
    is_main = fabric.is_global_zero
    try:
        refuse_batches(claim.config, fabric.world_size)
        domains = main_process_first(fabric, lambda: _open_all(claim.config, is_main))
        config = _with_chosen_taps(claim, domains, fabric).config
        tracking = _open_tracking(config, domains)
        method = build_method(config, len(domains.source.classes))
        refuse_crop(method.backbone, config.data.crop, method.eval().features)
        assert config.training.steps is not None  # complete
        method.begin(config.training.steps, config.training.seed)  # may refuse: better now than after all features
    except UserError:
        if is_main:
            claim.release()
        raise
    if is_main:
        describe_start(config, domains.source, domains.target, str(fabric.device))
        _tell_of_heads_alone(method)
    _train_and_report(fabric, method, domains, tracking, config, claim.folder)


def _claim_for_all(config: Config, fabric: Fabric) -> Claim:
    """The main process claims the folder; the others are told, in plain text, the config that came of it."""
    if fabric.world_size == 1:
        return claim_folder(config, fabric.device.type != "cpu")
    claims: list[Claim] = []

    def claim() -> str:
        claims.append(claim_folder(config, fabric.device.type != "cpu"))
        return config_to_yaml(claims[0].config)

    completed = config_from_yaml(told_by_main_process(fabric, claim))
    assert completed.output.out is not None  # or the main process had raised
    return claims[0] if claims else Claim(completed, completed.output.out, is_new=False)


def _with_chosen_taps(claim: Claim, domains: _Domains, fabric: Fabric) -> Claim:
    """A tap that is "auto" gets a name: once, on the main process; config.yaml keeps it for a resumed run."""
    if not has_open_tap(claim.config):
        return claim

    def choose() -> tuple[str | None, str | None]:
        return choose_taps(claim.config, domains.source, domains.target, fabric.device)

    taps = told_by_main_process(fabric, choose)
    claim = replace(claim, config=with_taps(claim.config, *taps))
    if fabric.is_global_zero:
        keep_config(claim)
    return claim


def refuse_batches(config: Config, processes: int) -> None:
    """Gradients are averaged over processes: with shares of different size, some images would count more.

    BatchNorm makes nothing of a single vector.
    """
    size, spa = config.training.batch_size, config.spa
    if size % processes:
        raise UserError(f"--batch-size {size} cannot be shared evenly by {processes} processes: choose a multiple")
    in_words = spa.spa and spa.spa_words == "on" and spa.spa_scale == "batchnorm"
    in_method = METHODS[config.training.method].normalises_batches
    if size == processes and (in_words or in_method):
        who = config.training.method if in_method else "--spa.scale batchnorm"
        raise UserError(
            f"--batch-size {size} is one image in each process, and {who} normalises over its images: choose "
            f"{2 * processes} or more"
        )


def _tell_of_heads_alone(method: Method) -> None:
    if not isinstance(method, SPA) or method.backbone.frozen_at != POOLED:
        return
    if not method.words.words.prototypes.requires_grad:
        log.info(
            "--train head fixes the backbone, and the words are fixed too: SPA's losses have nothing to change, only "
            "the method's heads learn; --train tail gives them something"
        )


def _open_all(config: Config, visible: bool) -> _Domains:
    source, target = open_domains(config.data, visible)
    return _Domains(source, target, read_truth(config.data, target, source.classes, visible))


def _open_inputs(fabric: Fabric, method: Method, domains: _Domains, config: Config) -> Inputs:
    """Images for a backbone that is trained whole; for one that is frozen up to a tap, kept features from there."""
    backbone = method.backbone
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, fabric.device)
    if backbone.frozen_at is None:
        return preprocess
    method.to(fabric.device)
    stem = stem_of(backbone, config.data.crop, config.model.feature_format)
    inputs = FeatureInputs(preprocess, stem, config.model.views, config.data.cache)
    looks = method.looks_at_source or bool(tracked(config.output))
    of_source = inputs.every_view if looks else inputs.training_views
    sets = [(domains.source.pixels, of_source), (domains.target.pixels, inputs.every_view)]
    if domains.truth is not None:
        sets.append((domains.truth.pixels, TEST_VIEW))
    main_process_first(fabric, lambda: inputs.prepare(sets, fabric.is_global_zero))
    task, pool = method.pretext, config.spa.spa_pool
    if task is not None and pool is not None:
        both = (domains.source.pixels, domains.target.pixels)
        main_process_first(fabric, lambda: inputs.prepare_pools(task, both, pool, fabric.is_global_zero))
    backbone.starts_at_tap = True
    return inputs


def _open_tracking(config: Config, domains: _Domains) -> Tracking | None:
    names = tracked(config.output)
    return Tracking(names, domains.source, domains.target, domains.truth, config.training.seed) if names else None


def _train_and_report(
    fabric: Fabric, method: Method, domains: _Domains, tracking: Tracking | None, config: Config, folder: Path
) -> None:
    started = time.monotonic()
    inputs = _open_inputs(fabric, method, domains, config)

    def measure() -> dict[str, float]:
        """What --track asks for, on the main process; the others wait for it at the next step."""
        return tracking.measure(method, inputs, fabric) if tracking is not None and fabric.is_global_zero else {}

    def evaluate(step: int) -> dict[str, float | None]:
        share_buffers(fabric, method)
        measures = measure()
        metrics, told = {}, [tracked_note(measures)]
        if domains.truth is not None:
            known = training.features_of(domains.truth.pixels)
            _, result = evaluate_method(fabric, method, domains.truth, inputs, known)
            metrics, told = result.scalars(), [summary_line(result), *told]
        log.info("step %d: %s", step, "  ".join(filter(None, told)))
        return {**metrics, **measures}

    source, target = domains.source, domains.target
    if method.backbone.frozen_at is None:  # every step looks at pixels
        source = replace(source, pixels=source.pixels.in_memory(fabric.world_size))
        target = replace(target, pixels=target.pixels.in_memory(fabric.world_size))
    stream = BatchStream(source, target, inputs, config, fabric, method.pretext, method.balanced_source)
    if config.training.compile:
        method.backbone.compile()
    has_evaluations = domains.truth is not None or tracking is not None
    training = Training(fabric, method, stream, config, folder, evaluate if has_evaluations else None)
    training.run()
    share_buffers(fabric, method)
    if fabric.is_global_zero:
        save_model(folder / "checkpoint" / "model.safetensors", method, config, domains.source.classes)
    facts = {
        "steps": config.training.steps,
        "images_per_second": training.images_per_second(),
        "peak_memory_bytes": peak_memory_bytes(fabric.device),
        "seconds": training.seconds_before + time.monotonic() - started,
    }
    measures = measure()
    if domains.truth is not None:
        pixels = domains.truth.pixels
        answers, result = evaluate_method(fabric, method, domains.truth, inputs, training.features_of(pixels))
    else:
        pixels, result = domains.target.pixels, None
        answers = answer_pixels(method, pixels, inputs, fabric, features=training.features_of(pixels))
    if fabric.is_global_zero:
        unread = domains.truth.skipped if domains.truth is not None else domains.target.skipped
        skipped = {*domains.source.skipped, *domains.target.skipped, *unread}
        named = name_answers(answers, pixels, domains.source.classes)
        Predictions(named, unread).write_csv(folder / "predictions.csv")
        show_answers([(p.path, p.label) for p in named], folder / "answers.png")
        write_skipped(folder / "skipped.csv", skipped)
        write_metrics(folder, result, facts, config, measures)  # the last: a folder with metrics.json is a finished run
        if measures:
            log.info("after the last step: %s", tracked_note(measures))
        describe_end(folder, result, answers, facts, len(domains.source.classes))
    fabric.barrier()


def evaluate_method(
    fabric: Fabric,
    method: Method,
    truth: Truth,
    inputs: Inputs,
    features: Tensor | None = None,
    visible: bool = True,
) -> tuple[Answers, OpenSetResult]:
    """One pass over the labelled target, or none if its features are known: the answers, and every metric of them."""
    answers = answer_pixels(method, truth.pixels, inputs, fabric, visible=visible, features=features)
    result = open_set_metrics(
        torch.from_numpy(truth.labels),
        answers.prediction,
        answers.closed,
        answers.unknown_score,
        method.num_classes,
        truth.names,
    )
    return answers, result
