"""python -m trainer.preflight: are a node's GPUs and links fit, before ranks start there."""
