"""Help with names that are spelt wrong."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'ovanet'?)", or "" if nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=10)
    if not close:
        return ""
    # Of names that are equally near, the first by the alphabet: lite0 rather than lite4.
    nearest = max(sorted(close), key=lambda other: difflib.SequenceMatcher(None, other, name).ratio())
    return f" (did you mean {nearest!r}?)"
