"""A run: the round loop, the function that executes, clients in this process, what is recorded and exported."""
