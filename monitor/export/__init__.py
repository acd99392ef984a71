"""`export`: logs and runs for other programs."""
