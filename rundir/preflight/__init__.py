"""Is every node of a job fit: the table of checks, the pairs to measure, the verdict. Pure."""
