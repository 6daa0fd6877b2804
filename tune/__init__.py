"""Ray Tune sweeps over runs: any dotted key, every trial an ordinary run folder, interrupted and continued at will."""

import actors  # noqa: F401 - what it sets in the environment must come before Ray is imported
