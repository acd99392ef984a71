"""Runs that last seconds."""

from collections.abc import Callable
from typing import Any

QUICK = ("--model", "mlp", "--global-batch-size", "250", "--log-every", "5")
"""20 steps an epoch on the shipped digits, some milliseconds each."""
Train = Callable[..., tuple[int, Any]]
