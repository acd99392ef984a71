"""The monitor: python -m monitor."""

__version__ = "0.1.0"
