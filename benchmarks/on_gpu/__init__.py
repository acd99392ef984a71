"""What a machine with one GPU and little time is asked for: `benchmarks/gpu.sh`."""
