"""Tables for pages and terminals."""

from collections.abc import Iterable, Sequence

from unida.errors import printable


def markdown(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Names of files and classes may stand in it: no character of theirs can break it."""
    escaped = [[printable(cell).replace("|", r"\|") for cell in cells] for cells in (heading, *lines)]
    first, *drawn = ["| " + " | ".join(cells) + " |" for cells in escaped]
    return "\n".join([first, "|---" * len(heading) + "|", *drawn])
