"""The error of what a user can mend, apart from schemas: the command line needs it before it needs pydantic. And what
a command says that a signal ended, for who has imported nothing else.
"""

from __future__ import annotations

from typing import Self

INTERRUPTED = "interrupted by {}; give the command again to start it anew"  # the signal's name


class UserError(Exception):
    """Something the user can mend. The text is one line: the key or file, what was found, what is allowed.

    The command line prints it without a traceback and exits with status 2. Where the line says to set a key of the
    block that names the images, ``to_set`` is that key, such as ``layout``.
    """

    to_set: str | None = None

    def setting(self, key: str | None) -> Self:
        """This error, with ``to_set``. (A constructor of its own would not come through from another process.)"""
        self.to_set = key
        return self


class StoppedAtOnce(UserError):
    """A stop was asked for, and what was to stop has ended before it could: what had been saved is there."""
