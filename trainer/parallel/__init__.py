"""How a model is parallelized: the layout of the ranks, and its application."""
