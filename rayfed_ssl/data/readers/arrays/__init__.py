"""NumPy's arrays (``data.name: arrays``)."""
