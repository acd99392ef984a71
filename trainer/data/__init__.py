"""Data: which samples make a step, in which order, and their batches on this rank."""
