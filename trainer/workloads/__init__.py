"""Workloads: model, data, loss."""
