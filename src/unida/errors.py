"""The exception that means "the user can fix this", and text that is safe to print."""


def printable(text: str) -> str:
    """The text with every unprintable character escaped: a line break becomes the two characters ``\\n``.

    File names may hold any character. Escaped, a name stays on one line, and cannot control the terminal or reverse the
    letters around it.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


class UserError(Exception):
    """A mistake in the input, not in the program.

    The message is one line: it names the file, class or option that is wrong, and what to do. The command line prints
    it without a traceback and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))
