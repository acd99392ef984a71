#!/usr/bin/env bash
# Measure everything, side by side, and write benchmarks/results.md.
#
#   benchmarks/run.sh [--quick] [--out FILE]
#
# BENCH_THREADS: CPU threads of every contestant (default 1).
# benchmarks/requirements.txt goes into an environment that sees the torch of .venv: tests/environment.py.
set -Eeuo pipefail
unset CDPATH

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PYTHON=$PWD/.venv/bin/python

if [[ ! -x $PYTHON ]]; then
    echo "bench: .venv must exist, found none: run make bench, which creates it" >&2
    exit 64
fi
BENCH_PYTHON=$("$PYTHON" tests/environment.py benchmarks/requirements.txt)
export OMP_NUM_THREADS=${BENCH_THREADS:-1}
exec "$PYTHON" -m benchmarks --python "$BENCH_PYTHON" --threads "$OMP_NUM_THREADS" "$@"
