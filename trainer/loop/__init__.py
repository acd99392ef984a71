"""The training loop, and what one run is built of."""
