"""What a script or a notebook calls: the same runs as on the command line, as objects."""
