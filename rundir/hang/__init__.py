"""Hung runs: what nodes report of them, and the verdict, a pure function of all reports."""

import signal

ASK = signal.SIGURG
"""Asks a node's watchdog for a report. Who expects no such signal is not disturbed by it."""
