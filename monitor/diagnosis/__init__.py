"""`diagnose`: rules that look for what is wrong with a run."""
