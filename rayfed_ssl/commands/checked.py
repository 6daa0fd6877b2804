"""``rayfed-ssl run --check``: a run's plan, memory, bytes and time. Nothing is started, and nothing stays written, but
for decoded images in a cache folder that RAYFED_SSL_CACHE names.
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
    """Lines of a run's plan. Long decoding is told on stderr, unless it is to be ``quiet``.

    Raises:
        UserError: what the run would be refused for. Where RAY_ADDRESS names a cluster, the folder is its driver's:
            that it is taken here is a line of the plan then.
    """
    from rayfed_ssl.api.execution import examined
    from rayfed_ssl.simulation.forecast import forecast
    from rayfed_ssl.storage.claim import refuse_taken

    of_place: list[str] = []
    if executor is Executor.ray and os.environ.get("RAY_ADDRESS"):
        try:
            if uri is None:
                refuse_taken(folder, resume)
        except UserError as error:
            of_place.append(str(error))
    else:
        config = examined(config, folder, uri=uri, resume=resume, say=of_place.append)
    plan = ("1 client at a time, in this process", 1) if executor is Executor.local else planned_on_ray(config)
    found = forecast(config, lambda line: None if quiet else print(line, file=sys.stderr, flush=True))
    yield found.what
    yield f"{'folder':<13} {uri or folder}"
    yield f"{'plan':<13} {plan[0]}"
    kept = found.kept.state + found.kept.bank
    of_clients = amount(kept * found.kept.clients + found.kept.state * found.kept.again)
    sent = f", {amount(found.kept.downloads)} of downloads (transport.down)" if found.kept.downloads else ""
    yield f"{'memory':<13} {amount(found.images)} of images, {of_clients} kept of clients between rounds{sent}"
    yield f"{'':<13} {amount(found.step_bytes)} in this process at a local step; {amount(found.free.bytes)} free here"
    if found.traffic is not None:
        yield f"{'bytes':<13} {amount(found.traffic.up)} up, {amount(found.traffic.down)} down, of all clients"
    else:
        yield f"{'bytes':<13} not known beforehand"
    yield (
        f"{'time':<13} about {_duration(found.seconds(plan[1]))} of training: {found.steps} local steps of "
        f"{found.step_s:.3g} s, measured on {found.device}"
        + (f", and {found.passes} passes of an image beside them" if found.passes else "")
    )
    if (idle := found.idle_share()) is not None:
        alone = _duration((1 - idle) * found.seconds(plan[1]))
        yield f"{'':<13} {idle:.0%} of a step this process waited, as on a busy machine: about {alone} without waiting"
    yield f"{'':<13} evaluation, server work and sending come on top"
    yield from (f"{'note':<13} {note}" for note in [*of_place, *found.notes])


def planned_on_ray(config: RunConfig) -> tuple[str, int]:
    """The plan in words, and how many actors: on the cluster that RAY_ADDRESS names, or else on this machine.

    Raises:
        UserError: it does not fit.
    """
    import torch

    from actors.plan import cores, plan, planned
    from actors.session import connect

    if os.environ.get("RAY_ADDRESS"):
        with connect():
            made = planned(config)
        where = "on the cluster of RAY_ADDRESS"
    else:
        here = {"CPU": cores(), "GPU": float(torch.cuda.device_count())}
        made, where = plan(config.resources, config.cohort_size, [here]), "on this machine"
    return f"{'; '.join(made.lines)}, {where}", made.actors


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} hours"
