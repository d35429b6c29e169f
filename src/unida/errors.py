"""The one exception that means "the user can mend this"."""


class UserError(Exception):
    """A mistake in the input, not in the program.

    The message is one line: it names the culprit (file, class or option) and the way out.
    The command line prints it without a traceback and exits with code 2.
    """
