"""The error for mistakes that a user can mend, and the message of a command that a signal ended. Both stand apart from
schemas, because the command line needs them before it imports pydantic.
"""

from __future__ import annotations

from typing import Self

INTERRUPTED = "interrupted by {}; give the command again to start it anew"  # the signal's name


class UserError(Exception):
    """A mistake that the user can mend. The text is one line: the key or file, what was found, what is allowed.

    The command line prints it without a traceback and exits with status 2. If the line asks to set a key of the block
    that names the images, ``to_set`` is that key, such as ``layout``.
    """

    to_set: str | None = None

    def setting(self, key: str | None) -> Self:
        """This error, with ``to_set``. (An error whose constructor took the key could not be unpickled.)"""
        self.to_set = key
        return self


class StoppedAtOnce(UserError):
    """A stop was asked for, and the work ended before it could stop regularly. What had been saved is kept."""
