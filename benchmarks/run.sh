#!/usr/bin/env bash
# Measure everything, side by side, and write benchmarks/results.md.
#
#   benchmarks/run.sh [--quick] [--out FILE]
#
# BENCH_THREADS: CPU threads of every contestant (default 1).
# Lightning and Accelerate go into .venv-bench, which sees the torch of .venv and does not replace it.
set -Eeuo pipefail
unset CDPATH

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PYTHON=$PWD/.venv/bin/python
BENCH_PYTHON=$PWD/.venv-bench/bin/python

purelib_of() {
    "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

torch_of() {
    "$1" -c 'import torch; print(torch.__version__, torch.__file__)'
}

# The project's packages come by a .pth file; the constraint keeps pip from bringing another torch.
environment_build() {
    local constraints site
    if "$BENCH_PYTHON" -c 'import accelerate, lightning' 2>/dev/null; then return; fi
    echo "installing Python packages into .venv-bench: lightning, accelerate" >&2
    "$PYTHON" -m venv .venv-bench
    site=$(purelib_of "$BENCH_PYTHON")
    purelib_of "$PYTHON" >"$site/project.pth"
    constraints=$(mktemp)
    "$PYTHON" -m pip list --format=freeze --disable-pip-version-check |
        grep -E '^(torch|torchvision|numpy)==' >"$constraints"
    if ! "$BENCH_PYTHON" -m pip install --quiet --disable-pip-version-check \
        --constraint "$constraints" lightning accelerate; then
        rm -rf -- "$constraints" .venv-bench
        echo "bench: lightning and accelerate must be at hand, but could not be installed (see above): run it once with a package index in reach" >&2
        exit 64
    fi
    rm -f -- "$constraints"
}

check_torch() {
    if [[ $(torch_of "$PYTHON") != "$(torch_of "$BENCH_PYTHON")" ]]; then
        echo "bench: both environments must share one torch, found $(torch_of "$PYTHON") and $(torch_of "$BENCH_PYTHON"): remove .venv-bench" >&2
        exit 64
    fi
}

if [[ ! -x $PYTHON ]]; then
    echo "bench: .venv must exist, found none: run make bench, which creates it" >&2
    exit 64
fi
environment_build
check_torch
export OMP_NUM_THREADS=${BENCH_THREADS:-1}
exec "$PYTHON" -m benchmarks --python "$BENCH_PYTHON" --threads "$OMP_NUM_THREADS" "$@"
