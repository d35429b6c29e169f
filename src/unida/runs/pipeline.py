"""A run from options to answers: data, training, evaluation, in this order."""

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from unida.analysis.auto_frame import choose_frame, with_frame
from unida.analysis.auto_tap import choose_taps, has_open_tap, with_taps
from unida.analysis.tracking import Tracking, tracked_note
from unida.answering.alone import Answers, Scored, score_pixels
from unida.answering.later import first_of_each
from unida.answering.target import TargetAnswers
from unida.config import Config, config_from_yaml, config_to_yaml
from unida.data.augment import Preprocess
from unida.data.domains import Source, Target, open_domains
from unida.data.pixels import Pixels
from unida.data.show import show_answers
from unida.errors import UserError
from unida.evaluation.metrics import OpenSetResult, open_set_metrics
from unida.evaluation.predict import Predictions, name_answers
from unida.evaluation.truth import Truth, read_truth
from unida.features.inputs import Inputs, PixelInputs
from unida.features.kept import TEST_VIEW, FeatureInputs, Job
from unida.features.stem import stem_of
from unida.methods.base import Method, Phase, spans
from unida.models.backbone import refuse_crop
from unida.models.options import AUTO
from unida.models.weights import refuse_model
from unida.recipes.base import ImageRecipe
from unida.runs.folder import Claim, claim_folder, is_finished, keep_config
from unida.runs.modelfile import build_for_run, save_model
from unida.runs.summary import describe_end, describe_start, summary_line, write_metrics, write_skipped
from unida.runs.targetfile import save_target
from unida.support.fabric import Fabric
from unida.support.memory import keep_freed_memory, peak_memory_bytes
from unida.support.processes import main_process_first, share_buffers, told_by_main_process
from unida.support.signals import interruptible
from unida.training.batches import BatchStream
from unida.training.devices import open_fabric
from unida.training.logging import logging_to
from unida.training.loop import Training

log = logging.getLogger("unida")


@dataclass(frozen=True)
class Domains:
    source: Source
    target: Target
    truth: Truth | None = None  # for evaluation; never handed to a method

    @property
    def pixels(self) -> dict[str, Pixels]:
        return {"source": self.source.pixels, "target": self.target.pixels}


def execute(config: Config) -> Path:
    """Carry out a run, or the rest of one that was interrupted."""
    fabric = open_fabric(config.training)
    fabric.launch()
    keep_freed_memory()
    is_main = fabric.is_global_zero
    claim = _claim_for_all(config, fabric)
    try:
        if not is_finished(claim.folder):
            logged = logging_to(claim.folder if is_main else None, visible=is_main)
            with interruptible(), _explaining_limits(config), logged, torch.random.fork_rng():
                _carry_out(claim, fabric)
        elif is_main:
            with logging_to(None):
                log.info("the run in %s is finished already: results are there, nothing is trained again", claim.folder)
        fabric.barrier()
    finally:
        if is_main:
            claim.unlock()
    return claim.folder


@contextmanager
def _explaining_limits(config: Config) -> Iterator[None]:
    """Report a lack of memory or disk as an error that the user can fix."""
    try:
        yield
    except OSError as error:
        what = error.filename or "a file of the run"
        raise UserError(
            f"{what} cannot be read or written ({error.strerror or error}): fix that, then continue with --resume"
        ) from error
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):  # BatchNorm's, of a map that is one pixel
            raise
        size, crop = config.training.batch_size, config.data.crop
        raise UserError(
            f"--batch-size {size} with --crop {crop} gives BatchNorm one value to normalise: raise one of them"
        ) from error
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in text:
            raise
        raise UserError(
            "out of memory: lower --batch-size, --image-size or the method's sizes, or use --train tail"
        ) from error


def _carry_out(claim: Claim, fabric: Fabric) -> None:
    is_main = fabric.is_global_zero
    try:
        refuse_uneven_batches(claim.config, fabric.world_size)
        refuse_model(claim.config.model.backbone, claim.config.model.weights)  # before all images are read
        domains = main_process_first(fabric, lambda: _open_all(claim.config, is_main))
        claim = _with_measured_frame(_with_chosen_taps(claim, domains, fabric), domains, fabric)
        config = claim.config
        method = build_for_run(config, domains.source, domains.target)
        phases = method.phases()  # may refuse: now, not after all features are computed
        refuse_single_images(method, config, fabric.world_size)
        refuse_crop(method.backbone, config.data.crop, method.eval().features)
        tracking = _open_tracking(config, domains)
    except UserError:
        if is_main:
            claim.release()
        raise
    if is_main:
        steps = spans(phases, method.problem.steps)[-1].stop
        describe_start(config, domains.source, domains.target, str(fabric.device), steps)
    _Run(fabric, method, phases, domains, tracking, config, claim.folder).carry_out()


def _claim_for_all(config: Config, fabric: Fabric) -> Claim:
    """The main process claims the folder, and sends the config that results to the others as text."""
    if fabric.world_size == 1:
        return claim_folder(config, fabric.device.type != "cpu")
    claims: list[Claim] = []

    def claim() -> str:
        claims.append(claim_folder(config, fabric.device.type != "cpu"))
        return config_to_yaml(claims[0].config)

    completed = config_from_yaml(told_by_main_process(fabric, claim))
    assert completed.output.out is not None  # or the main process would have raised
    return claims[0] if claims else Claim(completed, completed.output.out, is_new=False)


def _open_all(config: Config, visible: bool) -> Domains:
    source, target = open_domains(config.data, visible)
    return Domains(source, target, read_truth(config.data, target, source.classes, visible))


def _with_chosen_taps(claim: Claim, domains: Domains, fabric: Fabric) -> Claim:
    """A tap that is "auto" gets a name: once, on the main process; config.yaml keeps it for a resumed run."""
    if not has_open_tap(claim.config):
        return claim

    def choose() -> tuple[str | None, str | None]:
        return choose_taps(claim.config, domains.source, domains.target, fabric.device)

    return _with_config(claim, with_taps(claim.config, *told_by_main_process(fabric, choose)), fabric)


def _with_measured_frame(claim: Claim, domains: Domains, fabric: Fabric) -> Claim:
    """As above, for --frame auto."""
    if claim.config.model.frame != AUTO:
        return claim

    def measure() -> str:
        return choose_frame(claim.config, domains.source, domains.target, fabric.device)

    return _with_config(claim, with_frame(claim.config, told_by_main_process(fabric, measure)), fabric)


def _with_config(claim: Claim, config: Config, fabric: Fabric) -> Claim:
    claim = replace(claim, config=config)
    if fabric.is_global_zero:
        keep_config(claim)
    return claim


def refuse_uneven_batches(config: Config, processes: int) -> None:
    """Gradients are averaged over processes: with shares of different size, some images would count more."""
    size = config.training.batch_size
    if size % processes:
        raise UserError(f"--batch-size {size} cannot be shared evenly by {processes} processes: choose a multiple")


def refuse_single_images(method: Method, config: Config, processes: int) -> None:
    """BatchNorm over vectors needs more than one. (Over maps, it has the locations of one image.)"""
    size = config.training.batch_size
    normalises = any(isinstance(layer, nn.BatchNorm1d) for layer in method.modules())
    if size == processes and normalises:
        raise UserError(
            f"--batch-size {size} is one image in each process, but {config.training.method} has BatchNorm, which "
            f"needs two: choose {2 * processes} or more"
        )


def _open_tracking(config: Config, domains: Domains) -> Tracking | None:
    names = config.output.tracked
    return Tracking(names, domains.source, domains.target, domains.truth, config.training.seed) if names else None


def open_inputs(
    fabric: Fabric, method: Method, phases: Sequence[Phase], domains: Domains, config: Config, visible: bool = True
) -> Inputs:
    """Images if the whole backbone is trained; kept features if it is frozen up to a tap."""
    backbone, data = method.backbone, config.data
    if backbone.frozen_at is None:
        return PixelInputs(data.crop, backbone.mean, backbone.std, fabric.device)
    method.to(fabric.device)
    preprocess = Preprocess(data.crop, backbone.mean, backbone.std, fabric.device)
    stem = stem_of(backbone, data.crop, config.model.feature_format, config.model.engine)
    assert config.model.views is not None  # complete
    inputs = FeatureInputs(preprocess, stem, config.model.views, data.cache)
    visible = visible and fabric.is_global_zero
    jobs = views_needed(method, phases, domains, config)
    main_process_first(fabric, lambda: inputs.prepare(jobs, visible))
    main_process_first(fabric, lambda: inputs.prepare_pools(method.recipes, domains.pixels, visible))
    backbone.starts_at_tap = True
    return inputs


def views_needed(method: Method, phases: Sequence[Phase], domains: Domains, config: Config) -> list[Job]:
    """Test views that a run sweeps over, measures or answers for. Others are computed when a step needs them."""
    looks = any(phase.start is not None or phase.round is not None for phase in phases)
    sweeps_source = looks and any("source" in phase.sweeps for phase in phases)
    needed = [domains.target.pixels] if domains.truth is None else [domains.target.pixels, domains.truth.pixels]
    if sweeps_source or config.output.tracked:
        needed.insert(0, domains.source.pixels)
    jobs = [Job(pixels, TEST_VIEW) for pixels in needed]
    for domain, name in (made for phase in phases for made in phase.sweeps_made):
        recipe = method.recipes[name]
        assert isinstance(recipe, ImageRecipe)
        jobs.append(Job(domains.pixels[domain], TEST_VIEW, recipe))
    return jobs


class _Run:
    """A run whose folder, data and method are ready: train, then answer and write the results."""

    def __init__(
        self,
        fabric: Fabric,
        method: Method,
        phases: Sequence[Phase],
        domains: Domains,
        tracking: Tracking | None,
        config: Config,
        folder: Path,
    ) -> None:
        self.started = time.monotonic()
        self.fabric, self.method, self.domains, self.tracking = fabric, method, domains, tracking
        self.config, self.folder = config, folder
        self.inputs = open_inputs(fabric, method, phases, domains, config)
        stream = open_stream(fabric, method, domains, self.inputs, config)
        if config.training.compile:
            method.backbone.compile()
        has_evaluations = domains.truth is not None or tracking is not None
        evaluate = self._evaluate if has_evaluations else None
        self.training = Training(fabric, method, phases, stream, config, folder, evaluate)

    def carry_out(self) -> None:
        self.training.run()
        share_buffers(self.fabric, self.method)
        facts = {
            "steps": self.training.steps,
            "images_per_second": self.training.images_per_second(),
            "peak_memory_bytes": peak_memory_bytes(self.fabric.device),
            "seconds": self.training.seconds_before + time.monotonic() - self.started,
        }
        measures = self._measure()
        truth = self.domains.truth
        pixels = self.domains.target.pixels if truth is None else truth.pixels
        scored = score_pixels(self.method, pixels, self.inputs, self.fabric, features=self.training.features_of(pixels))
        if self.fabric.is_global_zero:
            answered = self._answer(scored, pixels)
            result, compared = None, {}
            if truth is not None:
                result = measure_answers(answered.answers, truth, self.method.num_classes)
                compared = compare_answers(answered, truth, self.method.num_classes)
            self._save(answered, pixels)
            self._write_results(answered.answers, pixels)
            # Write this last: a folder with metrics.json is a finished run.
            write_metrics(self.folder, result, facts, self.config, measures, compared, answered.rule)
            if measures:
                log.info("after the last step: %s", tracked_note(measures))
            describe_end(self.folder, result, answered, compared, facts)
        self.fabric.barrier()

    def _answer(self, scored: Scored, pixels: Pixels) -> TargetAnswers:
        first = first_of_each([file.digest for file in pixels.files])
        return TargetAnswers(scored, self.method.unknown_threshold, self.config.answering, first)

    def _save(self, answered: TargetAnswers, pixels: Pixels) -> None:
        """The model, and the target beside it; says how large both are."""
        model, target = (self.folder / "checkpoint" / name for name in ("model.safetensors", "target.safetensors"))
        save_model(model, self.method, self.config, self.domains.source.classes, answered.rule)
        save_target(target, answered.answers, answered.kept, answered.rule, pixels, self.config)
        sizes = [path.stat().st_size / 2**20 for path in (model, target)]
        log.info("model: %.1f MiB; the target's answers, and what new images need to join: %.1f MiB", *sizes)

    def _evaluate(self, step: int) -> dict[str, float | None]:
        share_buffers(self.fabric, self.method)
        measures = self._measure()
        metrics, told = {}, [tracked_note(measures)]
        if (truth := self.domains.truth) is not None:
            known = self.training.features_of(truth.pixels)
            scored = score_pixels(self.method, truth.pixels, self.inputs, self.fabric, features=known)
            if self.fabric.is_global_zero:
                answered = self._answer(scored, truth.pixels)
                result = measure_answers(answered.answers, truth, self.method.num_classes)
                metrics, told = result.scalars(), [summary_line(result), *told]
        log.info("step %d: %s", step, "  ".join(filter(None, told)))
        return {**metrics, **measures}

    def _measure(self) -> dict[str, float]:
        """What --track asks for, on the main process; the others wait for it at the next step."""
        if self.tracking is None or not self.fabric.is_global_zero:
            return {}
        return self.tracking.measure(self.method, self.inputs, self.fabric)

    def _write_results(self, answers: Answers, pixels: Pixels) -> None:
        domains = self.domains
        unread = domains.target.skipped if domains.truth is None else domains.truth.skipped
        named = name_answers(answers, pixels, domains.source.classes)
        Predictions(named, unread).write_csv(self.folder / "predictions.csv")
        show_answers([(p.path, p.label) for p in named], self.folder / "answers.png")
        left_out = (domains.source.skipped, domains.target.skipped, domains.source.copies, domains.target.copies)
        write_skipped(self.folder / "skipped.csv", {*unread, *itertools.chain(*left_out)})


def open_stream(fabric: Fabric, method: Method, domains: Domains, inputs: Inputs, config: Config) -> BatchStream:
    source, target = domains.source, domains.target
    if method.backbone.frozen_at is None:  # every step needs pixels
        source = replace(source, pixels=source.pixels.in_memory(fabric.world_size))
        target = replace(target, pixels=target.pixels.in_memory(fabric.world_size))
    return BatchStream(source, target, inputs, config, fabric, method.recipes)


def compare_answers(answered: TargetAnswers, truth: Truth, num_classes: int) -> dict[str, dict[str, OpenSetResult]]:
    """Every metric, alone and together, with the published threshold and with the one that is found."""
    return {
        name: {rule: measure_answers(answers, truth, num_classes) for rule, answers in rules.items()}
        for name, rules in answered.variants().items()
    }


def measure_answers(answers: Answers, truth: Truth, num_classes: int) -> OpenSetResult:
    return open_set_metrics(
        torch.from_numpy(truth.labels),
        answers.prediction,
        answers.closed,
        answers.unknown_score,
        num_classes,
        truth.names,
    )
