"""One rank on one node: its contract, command, log and end. A process per rank."""
