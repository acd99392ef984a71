"""`html`: a run as one page that opens offline."""
