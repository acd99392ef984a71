"""A job of thousands of ranks without the ranks: what it costs its supervisor, phase by phase."""
