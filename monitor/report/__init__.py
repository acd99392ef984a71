"""`report`: how jobs used their GPUs, in tables and words."""
