"""What an example answers when it is called."""

from collections.abc import Callable
from typing import NamedTuple


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Script = Callable[..., Answer]  # (module, *words)
