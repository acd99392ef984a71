"""What was recorded of a run, evaluated: one rule engine for `diagnose`, `watch` and `html`."""
