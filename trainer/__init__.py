"""The trainer: python -m trainer."""

__version__ = "0.1.0"
