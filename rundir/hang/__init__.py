"""Hung runs: what nodes report of them, and the verdict, a pure function of all reports."""
