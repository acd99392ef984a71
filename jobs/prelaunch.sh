#!/usr/bin/env bash
#SBATCH --job-name=ddp
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#
# Once per job: checks, resolves the settings, starts the ranks, classifies how they exit.
#
#   sbatch [sbatch options] jobs/prelaunch.sh [--dry-run] [trainer options]
#   sbatch [sbatch options] jobs/prelaunch.sh [--dry-run] -- any command
#   jobs/prelaunch.sh …        the same without Slurm, or inside salloc and srun --pty
#   jobs/prelaunch.sh --preflight   checks the nodes and ends: 0, or 70 if one is bad (docs/preflight.md)
#
# Settings come from the environment and are listed in README.md; --dry-run shows them.

# It finds itself and a Python, and becomes jobs/supervisor. Nothing is assigned here: bash exports again
# what has its name from the environment, and the ranks shall see the user's own.

# Slurm runs a copy from its spool directory, beside which nothing lies. Its controller may not answer at
# once, so it is asked twice; without a configuration its client would wait a minute. The last task of an
# array has the array's own id, which shows all: one is taken. Behind the path, maybe a link, are arguments.
submitted_from() {
    local script
    if [[ ${SLURM_JOB_ID-} && -e ${SLURM_CONF:-/} ]] && command -v scontrol >/dev/null; then
        script=$({ scontrol show job "$SLURM_JOB_ID" || scontrol show job "$SLURM_JOB_ID"; } 2>/dev/null |
            sed -nE '/^ *Command=/{s///; s#(/prelaunch\.sh)( .*)?$#\1#p}' | sort -u)
        script=$(readlink -f -- "$script") && dirname -- "$script"
    fi
}

# find_root: prints the directory that holds jobs/ and rundir/.
find_root() {
    local jobs
    for jobs in "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" "$(submitted_from)" \
        "${SLURM_SUBMIT_DIR-.}/jobs" "${DDP_HOME:-/opt/ddp}/jobs"; do
        if [[ $jobs && -r $jobs/supervisor/main.py && -r $jobs/../rundir/codes.py ]]; then
            (CDPATH='' cd -P -- "$jobs/.." && pwd)
            return 0
        fi
    done
}

# trace_subshell: with DEBUG. Only in subshells: the commands outside show the words of the job, which may be secret.
trace_subshell() {
    local debug=${DEBUG-}
    if [[ ${debug,,} =~ ^(1|on|y|yes|t|true)$ ]]; then
        PS4='+ \D{%H:%M:%S} \h ${BASH_SOURCE[0]##*/}:${LINENO}: '
        set -x
    fi
}

# Slurm warns a job whose time limit is shorter than --signal's time as soon as it starts.
trap '' USR1 USR2
set -- "$(trace_subshell && find_root)" "$@"
if [[ ! $1 ]]; then
    echo "prelaunch: jobs/ and rundir/ must lie where the submitted script is, in \$SLURM_SUBMIT_DIR or in /opt/ddp; found in none; submit from the project's directory or by an absolute path, into an image that is not ours after eval \"\$(container/pyxis_env.sh)\", which mounts it, or with DDP_IMAGE instead of --container-image" >&2
    exit 64
elif [[ ! -x $1/jobs/launcher.sh ]]; then
    echo "prelaunch: launcher.sh must be executable; found it is not in $1/jobs; chmod +x $1/jobs/*.sh" >&2
    exit 64
fi
set -- "$(trace_subshell && source "$1/jobs/find_python.sh" && find_python "$1")" "$@"
if [[ ! $1 ]]; then
    if ! pwd -P >/dev/null 2>&1; then # pyenv's python3 starts in none that is gone
        echo "prelaunch: the working directory must exist; found it gone; cd to one that does" >&2
        exit 64
    fi
    echo "prelaunch: the supervisor needs Python 3.9 or later; found none on $(uname -n) that is whole (Debian's python3-minimal is not); set DDP_PYTHON to one, or let the script run in the image (sbatch --container-image=./ddp.sqsh, docs/image.md)" >&2
    exit 64
fi
# Until the loop handles it, an interrupt ends this process without a traceback of its imports.
exec "$1" -I -S -X utf8 -c '
import signal, sys
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.path.insert(0, sys.argv[1])
from jobs.supervisor.main import main
main()' "$2" "$0" "${@:3}"
