"""Ray Tune sweeps over runs: any dotted key can vary, every trial is an ordinary run folder, and a sweep can be
interrupted and continued at any time.
"""

import actors  # noqa: F401 - what it sets in the environment must come before Ray is imported
