#!/bin/sh
# The interpreter GPU_PYTHON, on a node whose driver is the stub in FAULT_DIR and does what the
# node's own file says.
export LD_LIBRARY_PATH="$FAULT_DIR/driver" NVML_STANDIN="$FAULT_DIR/driver/${SLURMD_NODENAME-}"
exec "$GPU_PYTHON" "$@"
