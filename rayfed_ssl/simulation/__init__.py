"""A run: the round loop, the function that executes a client's operation, clients in this process, records and
exports.
"""
