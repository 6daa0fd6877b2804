"""The Python API for scripts and notebooks: the same runs as on the command line, as objects."""
