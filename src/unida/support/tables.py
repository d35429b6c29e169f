"""Tables for pages and terminals."""

from collections.abc import Iterable, Sequence

from unida.errors import printable


def markdown(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Names of files and classes may stand in it: no character of theirs can break it."""
    drawn = ["| " + " | ".join(printable(cell).replace("|", r"\|") for cell in cells) + " |" for cells in lines]
    return "\n".join(["| " + " | ".join(heading) + " |", "|---" * len(heading) + "|", *drawn])
