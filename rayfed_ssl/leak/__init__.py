"""What crossed the wire, asked whether it knows which images a client trained on: membership inference."""
