"""Ends one of our processes at once and silently when Ray stops it."""

from __future__ import annotations

import signal


def end_at_sigterm() -> None:
    """Let SIGTERM end this process. An actor's constructor calls it first: Ray runs constructors in the main thread.

    Ray sends it to the actors of a placement group that is removed. Ray's own handler raises SystemExit wherever the
    main thread happens to be. In the callback of a weak reference or in ``__del__`` Python prints that as "Exception
    ignored in", and forgets it: the process goes on. Nothing of ours needs a handler: what an actor writes is whole
    after SIGKILL, too.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
