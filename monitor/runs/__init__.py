"""What happened to a run: its events, its record, why it ended."""
