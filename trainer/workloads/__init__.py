"""Workloads: model, data, loss. They know neither ranks nor the run directory."""
