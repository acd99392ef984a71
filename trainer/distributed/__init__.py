"""The processes of a run: where they compute, their rendezvous and reductions."""
