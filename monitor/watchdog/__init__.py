"""Watches the ranks of a node from outside, and tells a hang from hard work."""
