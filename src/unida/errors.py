"""The one exception that means "the user can mend this"."""

from unida.support.text import printable


class UserError(Exception):
    """A mistake in the input, not in the program.

    The message is one line: it names the culprit (file, class or option) and the way out.
    The command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # a name in it may hold a line break
