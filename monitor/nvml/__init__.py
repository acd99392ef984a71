"""Readings of the driver: the only importer of pynvml."""
