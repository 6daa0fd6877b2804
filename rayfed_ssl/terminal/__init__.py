"""What the command line prints: progress and the doctor."""
