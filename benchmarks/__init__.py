"""How fast it is, beside others: `make bench` writes results.md."""
