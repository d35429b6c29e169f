"""`unida study NAME`: the studies of SPA's paper, on a benchmark or on one's own two folders."""

import shlex
import sys

from unida.cli import verbs
from unida.cli.output import exit_with
from unida.cli.parsing import parse
from unida.errors import UserError, printable
from unida.support.suggest import did_you_mean

ANALYSES = {  # studies without runs: they have their own options, and are commands of `unida analyze`, too
    "layers": (verbs.analyze_layers, "At which layer to adapt? NTR, DIS and PAS of every layer."),
    "complexity": (verbs.analyze_complexity, "Parameters and multiply-adds, without and with SPA's words."),
}


def study(arguments: list[str]) -> None:
    from unida.studies.catalogue import STUDIES

    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("\n".join(_list()))
        return
    if name in ANALYSES:
        ANALYSES[name][0](arguments[1:])
        return
    if name not in STUDIES:
        names = [*STUDIES, *ANALYSES]
        raise UserError(f"there is no study {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")
    chosen = STUDIES[name]
    description = (
        f"{chosen.about}\n\n"
        f"  unida study {name} --source DIR --target DIR --target-labels --out DIR\n"
        f"  unida study {name} --benchmark office31 --root DIR --pairs A:D D:A --out DIR"
    )
    options = parse(chosen.Options, f"unida study {name}", arguments[1:], description)
    options.check()
    from unida.studies.base import run_study
    from unida.support.signals import Interrupted, interruptible

    command = shlex.join(["unida", "study", *arguments])

    def show(line: str) -> None:
        print(printable(line), flush=True)

    try:
        with interruptible():
            failed = run_study(chosen, options, command, show)
    except (Interrupted, KeyboardInterrupt):
        exit_with(f"interrupted. Continue with the same command: {command}", 130)
    if failed:
        told = f"{len(failed)} run(s) failed, and are not in the table; give the same command to try them again:"
        lines = [f"  {record['row']} {record['pair']}, seed {record['seed']}: {record['reason']}" for record in failed]
        print("\n".join(map(printable, [told, *lines])), file=sys.stderr)
        sys.exit(1)


def _list() -> list[str]:
    from unida.studies.catalogue import STUDIES

    about = {**{name: chosen.about for name, chosen in STUDIES.items()}, **{k: v[1] for k, v in ANALYSES.items()}}
    return [
        "unida study NAME: a study of SPA's paper, on a benchmark or on your own two folders",
        "",
        *(f"  {name:<15} {text}" for name, text in about.items()),
        "",
        "Add --help to any of them: unida study ablation --help",
    ]
