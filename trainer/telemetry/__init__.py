"""What a run reports: events, heartbeat, metrics, profiles."""
