"""The parts that method files use: clients, the server, the operations between them, and their data and counters."""
