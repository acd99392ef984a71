"""Samples as columns: the log's format, both ways, and what adds up over it."""
