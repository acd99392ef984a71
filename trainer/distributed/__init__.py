"""The processes of a run: where they compute, how they meet and what they reduce."""
