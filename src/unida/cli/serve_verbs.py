"""`unida serve`: a finished run as a page and a JSON API."""

from importlib.util import find_spec

from unida.cli.parsing import parse
from unida.errors import UserError
from unida.serving.options import ServeOptions

NEEDED = ("fastapi", "uvicorn", "python_multipart")


def serve(arguments: list[str]) -> None:
    description = (
        "Answer images on a page in the browser, and over a JSON API.\n\n"
        "  unida serve runs/first\n\n"
        "Only this machine can ask, if you do not set --host."
    )
    options = parse(ServeOptions, "unida serve", arguments, description)
    options.check()
    from unida.runs.folder import refuse_unfinished

    refuse_unfinished(options.run)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"unida serve needs {missing[0]}, which is not installed: pip install 'unida[serve]'")
    from unida.serving.server import serve as run_server  # imports torch: only after all checks

    run_server(options, lambda line: print(line, flush=True))
