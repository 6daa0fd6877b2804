"""``rayfed-ssl run --check``: a run's plan, memory, bytes and time. Nothing is started, and nothing stays written but
decoded images, in a cache folder that RAYFED_SSL_CACHE names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rayfed_ssl.api.executor import Executor
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import amount
from rayfed_ssl.config import RunConfig


def checked(
    config: RunConfig, folder: Path, uri: str | None, *, resume: bool, executor: Executor, quiet: bool = False
) -> Iterator[str]:
    """The lines of a run's plan. While images are decoded for long, lines on stderr say so, unless ``quiet``.

    Raises:
        UserError: the run would be refused. If RAY_ADDRESS names a cluster, the folder is on the driver's machine:
            that it is taken on this one is then a line of the plan instead.
    """
    from rayfed_ssl.api.execution import examined
    from rayfed_ssl.simulation.forecast import forecast
    from rayfed_ssl.storage.claim import refuse_taken

    folder_notes: list[str] = []
    if executor is Executor.ray and os.environ.get("RAY_ADDRESS"):
        try:
            if uri is None:
                refuse_taken(folder, resume)
        except UserError as error:
            folder_notes.append(str(error))
    else:
        config = examined(config, folder, uri=uri, resume=resume, say=folder_notes.append)
    plan = ("1 client at a time, in this process", 1) if executor is Executor.local else planned_on_ray(config)
    costs = forecast(config, lambda line: None if quiet else print(line, file=sys.stderr, flush=True))
    yield costs.what
    yield f"{'folder':<13} {uri or folder}"
    yield f"{'plan':<13} {plan[0]}"
    per_client = costs.kept.state + costs.kept.bank
    of_clients = amount(per_client * costs.kept.clients + costs.kept.state * costs.kept.again)
    sent = f", {amount(costs.kept.downloads)} of downloads (transport.down)" if costs.kept.downloads else ""
    yield f"{'memory':<13} {amount(costs.images)} of images, {of_clients} kept of clients between rounds{sent}"
    yield f"{'':<13} {amount(costs.step_bytes)} in this process at a local step; {amount(costs.free.bytes)} free here"
    if costs.traffic is not None:
        yield f"{'bytes':<13} {amount(costs.traffic.up)} up, {amount(costs.traffic.down)} down, of all clients"
    else:
        yield f"{'bytes':<13} not known beforehand"
    yield (
        f"{'time':<13} about {_duration(costs.seconds(plan[1]))} of training: {costs.steps} local steps of "
        f"{costs.step_s:.3g} s, measured on {costs.device}"
        + (f", and {costs.passes} passes of an image beside them" if costs.passes else "")
    )
    if (idle := costs.idle_share()) is not None:
        alone = _duration((1 - idle) * costs.seconds(plan[1]))
        yield f"{'':<13} {idle:.0%} of a step this process waited, as on a busy machine: about {alone} without waiting"
    yield f"{'':<13} evaluation, server work and sending come on top"
    yield from (f"{'note':<13} {note}" for note in [*folder_notes, *costs.notes])


def planned_on_ray(config: RunConfig) -> tuple[str, int]:
    """The plan in words, and how many actors it has: on the cluster that RAY_ADDRESS names, or else on this machine.

    Raises:
        UserError: the run does not fit.
    """
    import torch

    from actors.plan import cores, plan, planned
    from actors.session import connect

    if os.environ.get("RAY_ADDRESS"):
        with connect():
            placing = planned(config)
        where = "on the cluster of RAY_ADDRESS"
    else:
        here = {"CPU": cores(), "GPU": float(torch.cuda.device_count())}
        placing, where = plan(config.resources, config.cohort_size, [here]), "on this machine"
    return f"{'; '.join(placing.lines)}, {where}", placing.actors


def _duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours, as text."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} hours"
