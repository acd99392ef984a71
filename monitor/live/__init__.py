"""`watch`: all nodes of a job live, in a terminal."""
