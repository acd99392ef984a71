#!/usr/bin/env bash
#SBATCH --job-name=ddp
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#
# Once per job: checks, resolves, starts the ranks, judges their end.
#
#   sbatch [sbatch options] jobs/prelaunch.sh [--dry-run] [trainer options]
#   sbatch [sbatch options] jobs/prelaunch.sh [--dry-run] -- any command
#   jobs/prelaunch.sh …        the same without Slurm, or inside salloc and srun --pty
#
# Settings come from the environment and are listed in README.md; --dry-run shows them.
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "prelaunch: bash must be 4.4 or later, found $BASH_VERSION: let the script run in the image (sbatch --container-image, docs/image.md)" >&2
    exit 64
fi
declare -A INHERITED=() # see lib/inherited.sh
for REPLY in $(compgen -e); do INHERITED[$REPLY]=${!REPLY}; done
unset CDPATH POSIXLY_CORRECT BASH_ENV "${!SQUEUE_@}" SLURM_TIME_FORMAT # filters and formats of the user's
set +o posix
set -Eeuo pipefail
IFS=$' \t\n'

LOG_NAME=prelaunch

# Slurm runs a copy from its spool directory, beside which nothing lies.
find_jobs_dir() {
    local candidate submitted=''
    if [[ ${SLURM_JOB_ID-} ]] && command -v scontrol >/dev/null; then
        # Twice, because under load the controller may not answer at once. The last task of an array
        # has the array's own id, which shows all of them: take one. Arguments follow the path.
        submitted=$({ scontrol show job "$SLURM_JOB_ID" || scontrol show job "$SLURM_JOB_ID"; } 2>/dev/null |
            sed -nE '/^ *Command=/{s///; s#/prelaunch\.sh( .*)?$##p}' | sort -u)
    fi
    for candidate in "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" "$submitted" "${SLURM_SUBMIT_DIR-.}/jobs" \
        "${DDP_HOME:-/opt/ddp}/jobs"; do
        if [[ $candidate && -r $candidate/lib.sh && -r $candidate/launcher.sh ]]; then
            (cd -- "$candidate" && pwd -P)
            return 0
        fi
    done
    echo "prelaunch: lib.sh and launcher.sh must lie beside the submitted script, in \$SLURM_SUBMIT_DIR/jobs or in the image's /opt/ddp/jobs, found in none: submit from the project's directory" >&2
    return 64
}

JOBS_DIR=$(find_jobs_dir) || exit 64
if [[ ! -x $JOBS_DIR/launcher.sh ]]; then
    echo "prelaunch: launcher.sh must be executable, found that it is not in $JOBS_DIR: chmod +x $JOBS_DIR/*.sh" >&2
    exit 64
fi
# shellcheck source=lib.sh
source "$JOBS_DIR/lib.sh"
# shellcheck source=lib/inherited.sh
source "$JOBS_DIR/lib/inherited.sh"
# shellcheck source=lib/settings.sh
source "$JOBS_DIR/lib/settings.sh"
# shellcheck source=lib/place.sh
source "$JOBS_DIR/lib/place.sh"
# shellcheck source=lib/foreign.sh
source "$JOBS_DIR/lib/foreign.sh"
# shellcheck source=lib/master.sh
source "$JOBS_DIR/lib/master.sh"
# shellcheck source=lib/step.sh
source "$JOBS_DIR/lib/step.sh"
# shellcheck source=lib/judge.sh
source "$JOBS_DIR/lib/judge.sh"
# shellcheck source=lib/requeue.sh
source "$JOBS_DIR/lib/requeue.sh"
# shellcheck source=lib/lock.sh
source "$JOBS_DIR/lib/lock.sh"
# shellcheck source=lib/nodes.sh
source "$JOBS_DIR/lib/nodes.sh"
# shellcheck source=lib/guard.sh
source "$JOBS_DIR/lib/guard.sh"
# shellcheck source=lib/decide.sh
source "$JOBS_DIR/lib/decide.sh"
# shellcheck source=lib/attempt.sh
source "$JOBS_DIR/lib/attempt.sh"

STOP_SIGNAL='' INTERRUPTED=0 GUARD_PID='' HELPER_PID='' DRY_RUN=0 ATTEMPT_IS_OPEN=0
RESTARTS=0 IDLE=0 CODE=0 DECISION='' LAST_WORDS='' LOST_NODES='' CARRIES_ON=0

main() {
    if [[ ${TORCHELASTIC_RUN_ID-} ]]; then
        die "this script must run once a job, found that torchrun starts it once a rank: run it without torchrun, or let torchrun start jobs/launcher.sh"
    fi
    parse_arguments "$@"
    leave_to_task_zero
    inherited_forget
    place_refuse_other_launchers
    master_forget_hooks
    place_detect "$@"
    if ((IS_OWN_COMMAND)); then
        foreign_check "${ARGUMENTS[@]:1}"
        foreign_check_program "${ARGUMENTS[1]}"
    fi
    check_start
    resolve_settings
    step_prepare
    step_build "${ARGUMENTS[@]}"
    settings_print
    hide_secrets "${STEP_COMMAND[@]}"
    printf 'step: %s\n' "$(printf '%q ' "${SHOWN[@]}")" >&2 || :
    if ((DRY_RUN)); then return 0; fi
    check_finish
    run_open
    if ((! UNDER_SLURM)) && command -v sbatch >/dev/null; then
        log_info "no Slurm job: the ranks run on this machine, $DDP_NODE; to submit one: sbatch jobs/prelaunch.sh"
    fi
    trap 'on_exit $?' EXIT
    trap 'on_signal INT' INT
    trap 'on_signal TERM' TERM HUP
    trap 'on_signal USR1' USR1
    helper_start
    attempts_run
    trap '' INT TERM HUP USR1
    exit "$CODE"
}

parse_arguments() {
    local word
    if [[ ${1-} == --dry-run ]]; then
        DRY_RUN=1
        shift
    fi
    for word in "$@"; do
        case $word in
            --) break ;;
            -h | --help) show_help ;;
            --version)
                print_version "$JOBS_DIR/.."
                exit 0
                ;;
            --dry-run) die "--dry-run must be the first word, found it later: put it there" ;;
        esac
    done
    if [[ ${1-} && $1 != -* ]]; then
        die "the first word must be an option of the trainer, or -- before a command of your own, found '$1': write -- $1 …"
    fi
    if [[ ${1-} != -- && " $* " == *' -- '* ]]; then
        die "-- must be the first word, found it later: leave the trainer's options before it away, a command of your own takes none"
    fi
    if [[ ${1-} == -- && $# -eq 1 ]]; then
        die "a command must follow --, found nothing: give one, or leave -- away to run the trainer"
    fi
    SUBMITTED=("$@") ARGUMENTS=("$@")
    IS_OWN_COMMAND=$([[ ${1-} == -- ]] && echo 1 || echo 0)
    sweep_point
}

# This script's own words, and, where our Python is at hand, the trainer's options.
show_help() {
    local python trainer
    print_head "${BASH_SOURCE[0]}"
    python=$(find_python "$JOBS_DIR/..")
    if [[ $python ]]; then
        mapfile -t trainer < <(python_command "$(dirname -- "$JOBS_DIR")" "$python" trainer)
        echo "The trainer's options (python -m trainer --help):"
        "${trainer[@]}" --help </dev/null || :
    fi
    exit 0
}

# One task of a job array takes its line of the file that jobs/sweep.sh wrote.
sweep_point() {
    local point
    [[ ${DDP_SWEEP_FILE-} && ${SLURM_ARRAY_TASK_ID-} ]] || return 0
    point=$(sed -n "${SLURM_ARRAY_TASK_ID}p" -- "$DDP_SWEEP_FILE" 2>/dev/null || :)
    [[ $point ]] ||
        die "DDP_SWEEP_FILE must have a line ${SLURM_ARRAY_TASK_ID}, found none in '$DDP_SWEEP_FILE': submit with jobs/sweep.sh"
    read -ra point <<<"$point"
    ARGUMENTS+=("${point[@]}")
}

# srun --pty with several tasks starts this script in each, and one of them is enough. In a batch job
# nobody should: the ranks would wait for the nodes that this step itself holds.
leave_to_task_zero() {
    [[ ${SLURM_STEP_ID-} ]] || return 0
    if [[ ${ENVIRONMENT-} == BATCH ]]; then
        # sbatch within a step hands on that step's number: only one that this job has counts.
        if [[ ${0##*/} == slurm_script ]] ||
            ! timeout -k 1 30 scontrol show step "$SLURM_JOB_ID.$SLURM_STEP_ID" >/dev/null 2>&1; then
            return 0
        fi
        [[ ${SLURM_PROCID:-0} == 0 ]] || exit "$EXIT_USAGE"
        die "this script must run once in a batch job, because it starts the ranks itself, found that srun starts it: leave srun away"
    fi
    if [[ ${SLURM_PROCID:-0} != 0 ]]; then
        log_info "task 0 of this step starts the ranks; task $SLURM_PROCID has nothing to do"
        exit 0
    fi
}

resolve_settings() {
    settings_run
    settings_debug_flags
    if ((DEBUG)); then trace_start; fi
    master_list_nodes
    master_resolve
    settings_cpus
    settings_network
    setting_note WORLD_SIZE "$(world_in_words)"
    settings_warn_unknown
    settings_chosen
    place_check_output "$DDP_OUT"
}

# world_in_words: "1 node, 2 ranks" or "3 nodes, 8 ranks on each".
world_in_words() {
    local each=''
    if ((NUM_NODES > 1)); then each=' on each'; fi
    echo "$(counted "$NUM_NODES" node), $(counted "$NUM_LOCAL_RANKS" rank)$each"
}

# Where our Python is at hand, wrong trainer options end here, before anything is written. The check
# runs beside what follows, because half a second of every start would be its own.
check_start() {
    local check
    CHECK_FD=''
    # In a container it may be a path of the host's.
    if [[ ${DDP_PYTHON-} && $PLACE == bare-* ]]; then
        type -P "$DDP_PYTHON" >/dev/null || die "DDP_PYTHON must be a program, found none at '$DDP_PYTHON': correct it, or unset it"
    fi
    PYTHON=$(find_python "$JOBS_DIR/..")
    if ((DRY_RUN || IS_OWN_COMMAND)) || [[ ! $PYTHON || $PLACE == host-image ]]; then return 0; fi
    mapfile -t check < <(python_command "$(dirname -- "$JOBS_DIR")" "$PYTHON" trainer)
    exec {CHECK_FD}< <(
        code=0
        WORLD_SIZE=$WORLD_SIZE "${check[@]}" --check "${ARGUMENTS[@]}" </dev/null 2>&1 || code=$?
        echo "$code"
    )
}

check_finish() {
    local said
    if [[ ! $CHECK_FD ]]; then return 0; fi
    mapfile -t said <&"$CHECK_FD"
    exec {CHECK_FD}<&-
    # Before 3.11 Python does not know the options it is started with.
    if ((said[-1] != 0 && said[-1] != EXIT_USAGE)) && ! "$PYTHON" -c 'import tomllib' 2>/dev/null; then
        die "the trainer needs Python 3.11 or later, found $("$PYTHON" -V 2>&1 | head -n 1) at $PYTHON: run 'make demo' once, which makes .venv here, or set DDP_PYTHON"
    fi
    if ((${#said[@]} > 1)); then printf '%s\n' "${said[@]::${#said[@]}-1}" >&2; fi
    ((said[-1] == 0)) || exit "${said[-1]}"
    if [[ " ${ARGUMENTS[*]} " == *' --check '* ]]; then
        log_info 'options and input are right; nothing was started, because of --check'
        exit 0
    fi
}

run_open() {
    WORK_DIR=$(mktemp -d "${TMPDIR:-/tmp}/ddp-$DDP_JOB_ID.XXXXXX" 2>/dev/null) ||
        die "a temporary directory is needed, found that none can be made in ${TMPDIR:-/tmp}: set TMPDIR to one that is writable"
    trap 'rm -rf -- "$WORK_DIR"' EXIT
    make_writable "$DDP_RUN_DIR"
    check_own_files
    lock_take
    settings_attempt # while we waited, its owner may have counted on
    mkdir -p -- "$DDP_RUN_DIR"/{logs,debug,checkpoints} 2>/dev/null ||
        die "the run directory must hold the directories logs, debug and checkpoints, found that they cannot be made in $DDP_RUN_DIR: is the disk full, or a file in their place?"
    attempts_count
}

# A colleague's run in a shared folder: what its owner made must be ours to write, too.
check_own_files() {
    local place
    for place in "$DDP_RUN_DIR"/{logs,debug,checkpoints,events.jsonl,metrics.jsonl,checkpoints/latest}; do
        if [[ -e $place && ! (-w $place && -r $place) ]]; then
            die "what belongs to a run must be writable, found that $place is $(stat -c '%U:%G %A' -- "$place"): its owner can chmod -R g+rwX $DDP_RUN_DIR (and umask 002 keeps it so); or choose another DDP_RUN_NAME"
        fi
    done
}

# In a log that nobody watches, a line now and then tells a slow job from a dead one; and the lock is
# renewed, for those who cannot ask Slurm.
helper_start() {
    local is_watched=$((INTERACTIVE || ! UNDER_SLURM)) said_at=$SECONDS renewed_at=$SECONDS
    (
        trap - INT TERM HUP USR1 EXIT
        while pause 1 && process_alive $$; do
            if ((SECONDS - renewed_at >= 15)); then
                renewed_at=$SECONDS
                lock_renew
            fi
            if ((! is_watched && SECONDS - said_at >= DDP_TIMESTAMP_INTERVAL)); then
                said_at=$SECONDS
                log_info "$(date '+%Y-%m-%d %H:%M:%S %z') job $DDP_JOB_ID is running"
            fi
        done
        rm -rf -- "$WORK_DIR" # the script was killed, and cannot
    ) &
    HELPER_PID=$!
    disown "$HELPER_PID" # bash reports a killed job that it knows
}

on_signal() {
    INTERRUPTED=1
    STOP_SIGNAL=$1
    (
        trap '' INT TERM HUP USR1
        event_write signal signal "\"$1\""
    )
    case $1 in
        USR1) log_info "SIGUSR1: the time limit is near, asking every rank for a checkpoint" ;;
        *) log_info "SIG$1: ending every rank" ;;
    esac
    step_stop "$1"
}

# on_exit CODE: the only way out once the run directory exists.
on_exit() {
    trap - EXIT
    trap '' INT TERM HUP USR1
    CODE=$1
    if [[ $HELPER_PID ]]; then stop_processes 0 "$HELPER_PID"; fi
    guard_stop
    if ((ATTEMPT_IS_OPEN)); then run_break "$1"; fi
    rm -rf -- "$WORK_DIR"
    log_info "$LAST_WORDS"
    case $DECISION in
        requeue | successor) requeue_job ;; # which keeps the lock, or hands it on
        *) lock_release ;;
    esac
    exit "$CODE"
}

# run_break CODE: the script itself fails; what it started ends, and the record says so.
run_break() {
    step_end
    event_write end code "$1"
    compose_record
    DECISION=fail
    LAST_WORDS="prelaunch.sh itself failed ($(describe_code "$1")); see the lines above"
}

main "$@"
