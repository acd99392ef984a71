#!/usr/bin/env bash
# The image's entry point.
#
#   docker run ddp --epochs 1      trainer options: jobs/prelaunch.sh starts the ranks in place
#   docker run ddp -- COMMAND …    the ranks run any command
#   docker run ddp bash            a program by its name, as it is
#
# As process 1 it hands signals on, so that `docker stop` ends the run as it ends a job, and reaps
# whatever is left to it (bash does that by itself).
set -Eeuo pipefail

readonly ROOT=${DDP_HOME:-/opt/ddp}
CHILD='' SIGNALLED=0

# Without a GPU two ranks show that ranks find each other; with GPUs there is one for each.
set_defaults() {
    export DDP_OUT=${DDP_OUT-/out}
    if [[ ! -v DDP_NPROC_PER_NODE ]] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
        export DDP_NPROC_PER_NODE=2
    fi
}

forward() {
    SIGNALLED=1
    if [[ $CHILD ]]; then kill -s "$1" "$CHILD" 2>/dev/null || :; fi
}

# Waits for the child through as many signals as arrive; its code is ours.
wait_child() {
    local code=0
    while :; do
        SIGNALLED=0
        code=0
        wait "$CHILD" || code=$?
        # A signal interrupts wait with a code of its own; the child's is still to come.
        ((SIGNALLED)) || return "$code"
    done
}

run_job() {
    local signal
    for signal in TERM INT HUP USR1 USR2; do
        # shellcheck disable=SC2064 # the name is this turn's
        trap "forward $signal" "$signal"
    done
    # A background child would ignore INT for good: with job control it does not.
    set -m
    "$ROOT/jobs/prelaunch.sh" "$@" </dev/null &
    CHILD=$!
    set +m
    wait_child
}

main() {
    if (($#)) && [[ $1 != -* ]]; then
        if ! command -v -- "$1" >/dev/null; then
            echo "entrypoint: the first word must be an option (--epochs 1), -- and a command, or a program; found '$1'; see docker run ddp --help" >&2
            exit 64
        fi
        exec "$@"
    fi
    set_defaults
    run_job "$@"
}

main "$@"
