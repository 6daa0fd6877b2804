"""``rayfed-ssl`` as ``python -m rayfed_ssl`` runs it, but not for longer than the process that starts it:

    python benchmarks/with_parent.py PID run ..

Once the process PID has ended, however that was, SIGTERM is sent to this one: a run then ends after its round, with a
checkpoint.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from threading import Thread

EVERY_S = 1.0


def watch(parent: int) -> None:
    """Wait until the process ``parent``, which started this one, has ended; then ask this one for its end, once: a
    second SIGTERM would end a run at once.
    """
    while os.getppid() == parent:
        time.sleep(EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    Thread(target=watch, args=[int(sys.argv.pop(1))], daemon=True).start()
    sys.path[0] = os.getcwd()  # as ``python -m`` has it, so that no module beside this file is found
    runpy.run_module("rayfed_ssl", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
