"""`plot`: a run as a picture."""
