"""Decoded pixels: the store that keeps them, its files' names, copies, digests, and notes on them."""
