"""The options that say which files are written."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from unida.errors import UserError
from unida.support.options import shown

SCRIPT = Path(__file__).with_name("standalone.py")


@dataclass(frozen=True)
class ExportOptions:
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a finished run."""
    onnx: Annotated[Path | None, shown("FILE.onnx", "")] = None
    """Write an ONNX model, and beside it a small script that runs it: FILE.py."""
    torch_export: Annotated[Path | None, shown("FILE.pt2", "")] = None
    """Write torch's own format, for torch.export.load."""
    alone: bool = False
    """Leave the run's target out of the file: each image answers by itself, with the method's own threshold."""

    def check(self) -> None:
        if self.onnx is None and self.torch_export is None:
            raise UserError("there is nothing to write: pass --onnx FILE.onnx or --torch-export FILE.pt2")
        for option, path, suffix in (("--onnx", self.onnx, ".onnx"), ("--torch-export", self.torch_export, ".pt2")):
            if path is not None and path.suffix != suffix:
                raise UserError(f"{option} {path}: the name must end in {suffix}")
        if self.onnx is None:
            return
        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
        if missing:
            raise UserError(f'--onnx needs {", ".join(missing)}: pip install "unida[export]"')
        script = self.onnx.with_suffix(".py")
        if script.exists() and not script.read_bytes().startswith(SCRIPT.read_bytes().splitlines()[0]):
            raise UserError(f"--onnx {self.onnx} comes with a script, but {script} is another file: take another name")
