"""``rayfed_ssl.run``, which runs a federation from a script or a notebook."""

from __future__ import annotations

import os
from pathlib import Path

from rayfed_ssl.api.call_arguments import Configuration, asked, run_folder
from rayfed_ssl.api.executor import Executor
from rayfed_ssl.api.folder import Run, load
from rayfed_ssl.api.process_state import OnProgress, carry_out, executor_named
from rayfed_ssl.api.python_messages import python_words


def run(
    config: Configuration,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    executor: Executor | str = Executor.ray,
    progress: bool = True,
    on_progress: OnProgress | None = None,
    **overrides: object,
) -> Run:
    """Run a federation to its last round, and return the run.

    A run whose training diverges is returned, too, with ``status`` "diverged"; ``summary["diverged"]`` says in which
    round, with which client and why. Its records end with the round before, and there is no encoder.

    Ctrl-C, or a notebook's stop button, ends the run after the current round, with a checkpoint. The returned run has
    ``status`` "stopped", and ``resume()`` continues it. A second Ctrl-C raises KeyboardInterrupt at once.

    If the servers of a Ray instance that this call started end, for example because memory is full, this process ends,
    too, with one line and status 1; Ray leaves no other way.

    Args:
        config: a YAML file, a mapping with the keys of one, or another run's ``config``.
        out: the run folder, or its URI; by default ``runs/<name>``, where a config file without ``name`` has its stem.
        resume: whether to continue from the newest complete checkpoint, if there is one; ``train__rounds`` may then be
            larger.
        executor: "ray" for Ray actors, "local" for this process alone. The results are the same to the bit.
        progress: whether to print progress: a bar on a terminal, a line per round elsewhere.
        on_progress: called in this process with everything that would be printed, as a ``rayfed_ssl.Progress``: lines,
            finished rounds and evaluations with their values. If it returns something true, the run ends as by Ctrl-C.
            An exception that it raises ends the run at once; ``resume=True`` continues from the newest checkpoint.
        overrides: keys of the configuration, with ``__`` for dots: ``train__rounds=3``, ``data__limit=500``. A mapping
            is merged key by key: ``train={"rounds": 3, "batch_size": 16}``.
    Raises:
        UserError: the caller made a mistake, one line each, or what a server trains before the first round diverges;
            nothing was written. Also if the disk is full, or a trace (``system.availability``) ends; rounds may have
            been recorded then, and ``resume=True`` continues from them.
        ClientError: a client failed; its own traceback is in the text.
        KeyboardInterrupt: Ctrl-C was pressed a second time.
    """
    executor_named(executor)
    with python_words():
        settings = asked(config, overrides)
    if out is None:
        file = Path(config).expanduser() if isinstance(config, str | os.PathLike) else None
        out = run_folder(file, settings.name, resume)
    where = carry_out(settings, out, resume=resume, executor=executor, progress=progress, on_progress=on_progress)
    return load(where, trust_imports=True)
