"""What computes a frozen stem: torch, or an engine that does the same faster on a CPU.

An *engine* turns images (B, 3, H, W), normalised float32 on the CPU, into the stem's output. Only features that are
kept come from it; prediction on new images goes through torch. So an engine must give torch's numbers up to less than
what 16 bits round away: it computes in float32, and is compared with torch before it is used.
"""

import copy
import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from unida.errors import UserError
from unida.models.backbone import Backbone
from unida.models.options import AUTO, EngineName
from unida.support.signals import keeping_signal_stack

log = logging.getLogger("unida")

TORCH, OPENVINO = "torch", "openvino"
TOLERANCE = 1e-4  # of the largest value; float32 gives 2e-6, and fp16 rounds by up to 5e-4


class Engine(NamedTuple):
    run: Callable[[Tensor], Tensor]
    key: str  # name and version: part of the key of its features; torch's is empty


def open_engine(backbone: Backbone, crop: int, name: EngineName) -> Engine:
    """The engine of that name; with "auto", the one that is likely to be the fastest here.

    It is made ready when it is first run, which takes seconds: if all features are kept already, it never is.
    """
    on_cpu = next(backbone.parameters()).device.type == "cpu"
    is_installed = importlib.util.find_spec(OPENVINO) is not None
    gains = not isinstance(backbone.model, VisionTransformer)  # plain ones are as fast in torch (docs/performance.md)
    if name == TORCH or (name == AUTO and not (on_cpu and is_installed and gains)):
        return Engine(backbone.stem, "")
    if not on_cpu:
        raise UserError(f"--engine {name} computes on a CPU only: leave it out, or add --accelerator cpu")
    if not is_installed:
        raise UserError(f'--engine {name} is not installed: pip install "unida[fast]", or leave it out')
    ready: list[Callable[[Tensor], Tensor]] = []

    def run(images: Tensor) -> Tensor:
        if not ready:
            ready.append(_open_or_fall_back(backbone, crop, name))
        return ready[0](images)

    return Engine(run, f"{OPENVINO} {importlib.metadata.version(OPENVINO)} f32")


def _open_or_fall_back(backbone: Backbone, crop: int, name: EngineName) -> Callable[[Tensor], Tensor]:
    try:
        return _open_openvino(backbone, crop)
    except Exception as error:  # a converter can fail in any way
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error)).rstrip(".")
        if name != AUTO:
            raise UserError(f"--engine {name} cannot run {backbone.name} ({reason}): leave it out") from error
        log.info("features: %s cannot run %s (%s); torch computes them", OPENVINO, backbone.name, reason)
        return backbone.stem


def _open_openvino(backbone: Backbone, crop: int) -> Callable[[Tensor], Tensor]:
    openvino = _import_openvino()
    request = _compile(openvino, backbone, crop)

    def run(images: Tensor) -> Tensor:
        outputs = request.infer([images.contiguous().numpy()], share_inputs=True)
        return torch.from_numpy(outputs[0].copy())  # its memory is used again by the next batch

    _compare(run, backbone, crop)
    return run


def _import_openvino() -> Any:
    """Import it without its telemetry, which would report every import to a web service, unasked."""
    telemetry = "openvino_telemetry"
    before = sys.modules.get(telemetry)
    sys.modules[telemetry] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        importlib.import_module("openvino.frontend.pytorch.ts_decoder")
        return importlib.import_module(OPENVINO)
    finally:
        if before is None:
            del sys.modules[telemetry]
        else:
            sys.modules[telemetry] = before


def _compile(openvino: Any, backbone: Backbone, crop: int) -> Any:
    """The stem in OpenVINO, for batches of any size."""
    frozen = _Frozen(backbone, crop)
    frontend = openvino.frontend.FrontEndManager().load_by_framework("pytorch")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing is deprecated, and warns of every shape that it takes as fixed
        # openvino.convert_model would do the same, but sends telemetry.
        traced = openvino.frontend.pytorch.ts_decoder.TorchScriptPythonDecoder(
            frozen, example_input=(torch.zeros(1, 3, crop, crop),), trace_kwargs={"check_trace": False}
        )
        model = frontend.convert(frontend.load(traced))
    model.reshape([-1, 3, crop, crop])
    settings = {
        # By default it takes bfloat16 where the processor says that it has it. That is not torch's answer, and on
        # virtual machines that say so wrongly it kills the process.
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",  # one batch at a time, by all threads
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # or two runs on one machine would share a core
    }
    with keeping_signal_stack():
        return openvino.Core().compile_model(model, "CPU", settings).create_infer_request()


class _Frozen(nn.Module):
    """The stem as a module of its own."""

    def __init__(self, backbone: Backbone, crop: int) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone).to(memory_format=torch.contiguous_format)
        if isinstance(self.backbone.model, VisionTransformer):
            # timm fits the place embedding to the image's size in every call, and OpenVINO's bicubic resize is another.
            self.backbone.model.set_input_size(img_size=(crop, crop))

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone.stem(images)


@torch.inference_mode()
def _compare(run: Callable[[Tensor], Tensor], backbone: Backbone, crop: int) -> None:
    """Refuse an engine that does not give torch's features. Two images: it was traced with one."""
    images = torch.randn(2, 3, crop, crop, generator=torch.Generator().manual_seed(0))
    expected = backbone.stem(images)
    apart = float((run(images) - expected).abs().max() / expected.abs().max())
    if not apart <= TOLERANCE:
        raise ValueError(f"its features differ from torch's by {apart:.1e} of the largest")
