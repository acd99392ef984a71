"""What all sides agree on about a run: its files, events, exit codes and secrets.

Standard library only, Python 3.9; imports no other part, so that supervisor, trainer
and monitor can.
"""
