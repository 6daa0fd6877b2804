"""Where a run is stored: one writer per folder, checkpoints, copies at a URI."""
