"""Names that others chose, as they can be shown: a file may be called anything."""


def printable(text: str) -> str:
    """The text with every character that has no picture escaped: a line break becomes the two characters ``\\n``.

    So a name stays on one line, and cannot steer the terminal or turn the order of the letters around it.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
