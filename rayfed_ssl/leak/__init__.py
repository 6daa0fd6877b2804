"""Membership inference: whether the messages that were sent reveal which images a client trained on."""
