"""`record`: samples the GPUs and the host, and writes them into a log."""
