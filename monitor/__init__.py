"""The monitor: python -m monitor."""
