#!/usr/bin/env bash
# What a machine with one GPU and little time is asked for: what must be right first, then how fast it is.
#
#   benchmarks/gpu.sh [--budget SECONDS] [--out DIR] [--wheels DIR] [--only CASE…] [--rehearse]
#   benchmarks/gpu.sh --collect DIR [--python 3.12]     gather wheels for a machine without a network
#   benchmarks/gpu.sh --publish DIR                     put what came back into docs/ and examples/
#
# PYTHON: the Python that has torch (default .venv/bin/python, else python3).
set -Eeuo pipefail
unset CDPATH

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -z ${PYTHON-} ]]; then
    PYTHON=python3
    if [[ -x $root/.venv/bin/python ]]; then PYTHON=$root/.venv/bin/python; fi
fi
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$PYTHON" -P -m benchmarks.on_gpu "$@"
