"""From arguments to typed options, with one-line errors."""

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro

from unida.errors import UserError
from unida.support.options import flag
from unida.support.suggest import did_you_mean

T = TypeVar("T")


def parse(kind: type[T], program: str, arguments: Sequence[str], description: str) -> T:
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    said = io.StringIO()  # the parser explains errors in boxes of many lines; a user's error is one line here
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                kind,
                prog=program,
                args=list(arguments),
                description=description,
                config=options,
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise UserError(f"{_gist(said.getvalue())}; see: {program} --help") from None
    if unknown:
        name = unknown[0].partition("=")[0]
        is_option = name.startswith("-")
        hint = did_you_mean(name, _option_names(kind)) if is_option else ""
        what = "there is no option" if is_option else "unexpected argument"
        raise UserError(f"{what} {name!r}{hint}; see: {program} --help")
    return parsed


def _gist(box: str) -> str:
    """The first statement in the parser's box, in one line, without the indented help on options."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    below_title = itertools.dropwhile(lambda line: not re.search("─{3}|-{3}", line), plain.splitlines())
    content = (line[2:].rstrip("│ ") for line in itertools.islice(below_title, 1, None))  # border, space, text
    statement = itertools.takewhile(lambda line: line.strip(" ─-"), content)
    words = [line.strip() for line in statement if not line.startswith(" " * 8)]
    gist = " ".join(words or plain.split()).rstrip(". ")  # the box may break the line before its last full stop
    return re.sub(r"(?<=Expected one of )\((.*)\)", lambda found: _choices(found[1]), gist)


def _choices(listed: str) -> str:
    """The choices that a user can write: the parser adds None, in any order, to those of an option without default."""
    choices = re.findall("'(.*?)'", listed)
    return ", ".join(sorted(set(choices) - {"None"}) if "None" in choices else choices)


def _option_names(kind: Any) -> Iterator[str]:
    """Every --option of a dataclass and of the dataclasses in it."""
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(f.type):
            yield from _option_names(f.type)
        else:
            yield flag(f.name)


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option that must be known before the others can be parsed."""
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None
