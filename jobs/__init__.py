"""The life of a job: supervisor, backends, and one agent a rank. Standard library, Python 3.9."""
