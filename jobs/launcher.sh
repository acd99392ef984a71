#!/usr/bin/env bash
# Once per rank: the rank contract, the monitor on local rank 0, the command, its log, its end.
#
#   launcher.sh [trainer options]
#   launcher.sh -- any command
#
# Started by srun (SLURM_* variables), by prelaunch.sh or torchrun (RANK and friends), or by hand.
#
# It finds a Python for jobs/agent, which does all of that. Nothing is assigned here: bash
# exports again what has its name from the environment, and the ranks shall see the user's own.
trap '' USR1 # a request for a checkpoint must not end what is only starting

# trace_subshell: with DEBUG. Only in subshells: the commands outside show the words of the job, which may be secret.
trace_subshell() {
    local debug=${DEBUG-}
    if [[ ${debug,,} =~ ^(1|on|y|yes|t|true)$ ]]; then
        PS4='+ \D{%H:%M:%S} \h ${BASH_SOURCE[0]##*/}:${LINENO}: '
        set -x
    fi
}

set -- "$(trace_subshell && CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)" "$@"
set -- "$(trace_subshell && source "$1/jobs/find_python.sh" && find_python "$1")" "$@"
if [[ ! $1 ]]; then
    echo "launcher: a rank's agent needs Python 3.9 or later; found none on $(uname -n) that is whole (Debian's python3-minimal is not); set DDP_PYTHON to one, or let the ranks run in an image that has it (DDP_IMAGE or sbatch --container-image, docs/image.md)" >&2
    exit 64
fi
exec "$1" -I -S -X utf8 "$2/jobs/agent/__main__.py" "${@:3}"
