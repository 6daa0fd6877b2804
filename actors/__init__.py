"""The only package that creates Ray actors: clients, the driver, the cohort between them, and the plan of resources.

The parts of calls and their results. A call travels down to an actor, its return values travel up to the cohort:

=====================  ===========  ================================================================================
name                   travels      what it is
=====================  ===========  ================================================================================
wire.Work              down         what a call asks of its clients, with their small values
wire.ArgRef            down         in ``Work``: a value that is an argument of the call, put into Ray's store once
wire.ChunkResult       up           the first return value: results, small values, and how the rest is returned
wire.StateReturn       both ways    whether new states are within the result, apart, or together in one return value
wire.OmittedValue      up           in ``ChunkResult``: a large value of a reply, which is in another return value
wire.SumHeader         up           in ``ChunkResult``: a partial sum without its totals, which are a return value
window.Request         stays here   what a call asks, as the cohort keeps it, to ask again if its result is lost
states.StateRef        stays here   a reference to where a client's state lies
replies.RemoteValue    stays here   made of an ``OmittedValue``: fetched from Ray's store when it is read
sums.PartialSum        stays here   a ``SumHeader``, a reference to its totals, and the node where they lie
client.RunningSum      in an actor  what the actor has summed and not yet handed over
=====================  ===========  ================================================================================

If no cluster is named, Ray is told before it is imported that this is one machine, so that its sockets are on loopback.
"""

import os
import sys

if "ray" not in sys.modules and not os.environ.get("RAY_ADDRESS"):
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
