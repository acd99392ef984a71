"""Watches the ranks of a node from outside, and distinguishes a hang from hard work."""
