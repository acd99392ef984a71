"""The trainer: python -m trainer."""
