"""The only place that makes Ray actors: clients, the driver, the cohort between them, the sums of who gets what.

Where no cluster is named, Ray is told before it is imported that this is one machine: then its sockets are on loopback.
"""

import os
import sys

if "ray" not in sys.modules and not os.environ.get("RAY_ADDRESS"):
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
