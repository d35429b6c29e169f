"""A finished run as one file: ONNX with a small script beside it, or torch's own .pt2."""

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unida.answering.alone import Answers, Scored, decide
from unida.answering.later import Answered
from unida.data.settings import UNKNOWN
from unida.errors import UserError
from unida.export.graph import AnsweringGraph
from unida.export.options import SCRIPT
from unida.export.parity import TOLERANCE, Apart, Expected, compare, expect, pictures
from unida.methods.base import Method
from unida.runs.modelfile import ModelInfo
from unida.support.files import write_text, written_aside

OUTPUTS = ("label", "probability", "unknown_score", "probabilities")
MOST_BYTES = 2**31 - 2**24  # of tensors in an ONNX file: protobuf ends at 2 GiB, and the graph needs some
AT_ONCE = 16  # images


@dataclass(frozen=True)
class Written:
    """A file that was written, and how it was compared with `unida predict`."""

    path: Path
    images: int
    apart: Apart

    def note(self) -> str:
        """A line for people."""
        size = self.path.stat().st_size / 2**20
        same = f"on {self.images} images it answers as unida predict does, scores within {TOLERANCE:g}"
        if self.apart.excused:
            same += f", but for {self.apart.excused} image(s) with up to {self.apart.most:.4f}: there, "
            same += "the last bits of the pixels change torch's own scores too"
        return f"wrote {self.path}, {size:.1f} MiB: {same}"


@dataclass(frozen=True)
class Traced:
    """A run as a graph, and the answers that each file of it must give."""

    program: torch.export.ExportedProgram
    bytes: int  # of its tensors
    about: dict[str, Any]  # what a program needs beside the graph, and what a person may want to know
    expected: Expected


def export_run(
    folder: Path,
    method: Method,
    info: ModelInfo,
    answered: Answered,
    onnx: Path | None = None,
    torch_export: Path | None = None,
    alone: bool = False,
) -> list[Written]:
    """Write a run to one file or two. A file that would not answer as `unida predict` does is not written.

    Args:
        folder: of the run.
        method: on the CPU.
        alone: leave the target out; each image answers by itself, with the method's own threshold.
    """
    written = []
    with tempfile.TemporaryDirectory(prefix="unida-export-") as made:
        traced = trace(pictures(folder, Path(made)), method, info, answered, alone)
        for path, write in ((onnx, write_onnx), (torch_export, write_torch)):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                written.append(write(traced, path))
    return written


def trace(paths: Sequence[Path], method: Method, info: ModelInfo, answered: Answered, alone: bool) -> Traced:
    """The run as a graph, and its answers for the pictures at `paths`, each taken as a new one."""
    kept = None if alone else answered.kept
    threshold = method.unknown_threshold if alone else info.rule.threshold
    graph = AnsweringGraph(method, info, kept, threshold)

    def answer(scored: Scored) -> Answers:
        if alone:
            return decide(scored.probabilities, scored.unknown, threshold)
        return answered.answer_new(scored, info.rule)

    # Before the graph is traced: some networks keep what they compute first, and that must be numbers.
    expected = expect(paths, method, info, answer, threshold)
    with _explaining(f"torch cannot export a run on {info.backbone}"), torch.no_grad():
        example = torch.zeros(2, info.crop, info.crop, 3, dtype=torch.uint8)
        batch = {0: torch.export.Dim("batch", min=1)}
        program = torch.export.export(graph, (example,), dynamic_shapes={"images": batch})
    about = {
        "classes": info.classes,
        "unknown": UNKNOWN,
        "resize": info.resize,
        "image_size": info.image_size,
        "crop": info.crop,
        "filter": "bilinear, as pillow does it",
        "threshold": threshold,
        "neighbours": 0 if kept is None else kept.cosines.shape[1],
        "method": info.method if info.spa is None else f"{info.method}+spa",
        "backbone": info.backbone,
    }
    size = sum(tensor.nbytes for tensor in (*graph.parameters(), *graph.buffers()))
    return Traced(program, size, about, expected)


def write_onnx(traced: Traced, path: Path) -> Written:
    """The model, and beside it a script of the same name that ends in .py."""
    if traced.bytes > MOST_BYTES:
        raise UserError(f"--onnx {path}: one ONNX file holds at most 2 GiB; use --torch-export, or add --alone")
    with _explaining(f"--onnx {path}: a run on {traced.about['backbone']} cannot be written as ONNX"):
        made = torch.onnx.export(
            traced.program, dynamo=True, input_names=["images"], output_names=OUTPUTS, verbose=False
        )
    assert made is not None
    made.model.metadata_props["unida"] = json.dumps(traced.about)
    with written_aside(path) as aside:
        made.save(aside, external_data=False)
        apart = compare(traced.expected, *_by_onnxruntime(aside, traced), f"--onnx {path}")
    write_text(path.with_suffix(".py"), SCRIPT.read_text("utf-8"))
    return Written(path, len(traced.expected.paths), apart)


def _by_onnxruntime(path: Path, traced: Traced) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers of the file in ONNX Runtime, by the script that is written beside it."""
    from unida.export.standalone import answers

    numbers = {name: number for number, name in enumerate((*traced.about["classes"], UNKNOWN))}
    rows = {row[0]: row for row in answers(path, traced.expected.paths)}
    ours = [rows[str(file)] for file in traced.expected.paths]
    labels = np.array([numbers.get(label, -1) for _, label, *_ in ours])
    return labels, np.array([row[2] for row in ours]), np.array([row[3] for row in ours])


def write_torch(traced: Traced, path: Path) -> Written:
    """The same for `torch.export.load`; its extra file "unida.json" is what the ONNX file has as metadata."""
    run = traced.program.module()
    with torch.no_grad():
        parts = [run(some) for some in traced.expected.centres.split(AT_ONCE)]
    label, probability, unknown = (torch.cat([part[place] for part in parts]).numpy() for place in range(3))
    apart = compare(traced.expected, label, probability, unknown, f"--torch-export {path}")
    with written_aside(path) as aside, open(aside, "wb") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors that are parts of others
        torch.export.save(traced.program, stream, extra_files={"unida.json": json.dumps(traced.about)})
    return Written(path, len(traced.expected.paths), apart)


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    """An exporter can fail in any way; its first line is the reason. Its advice for programmers is not shown."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error)).rstrip(".")
        raise UserError(f"{what} ({reason[:200]}): use another backbone or method") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
