"""The commands that take a finished run into use: answers for other images, and the run as one file."""

from unida.cli.output import check_writable
from unida.cli.parsing import parse


def export(arguments: list[str]) -> None:
    from unida.export.options import ExportOptions
    from unida.runs.folder import refuse_unfinished

    description = "A run as one file that answers without this package: ONNX, or torch's own format."
    options = parse(ExportOptions, "unida export", arguments, description)
    options.check()
    refuse_unfinished(options.run)
    for option, path in (("--onnx", options.onnx), ("--torch-export", options.torch_export)):
        if path is not None:
            check_writable(option, path)
    from unida.api import load

    for written in load(options.run).export(options.onnx, options.torch_export, options.alone):
        print(written.note())
    if options.onnx is not None:
        print(f"run it: python {options.onnx.with_suffix('.py')} PICTURES > answers.csv")
