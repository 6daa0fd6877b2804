"""Where a run lies: one writer per folder, checkpoints, copies at a URI."""
