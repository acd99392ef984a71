"""Checkpoints: what is saved, how it is written and read, and how a run resumes from one."""
