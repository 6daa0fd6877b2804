"""The command line's commands, one file each; they import what they need when they are called."""
