#!/usr/bin/env bash
# Once per rank: the rank contract, the monitor on local rank 0, the command, its log, its end.
#
#   launcher.sh [trainer options]
#   launcher.sh -- any command
#
# Started by srun (SLURM_* variables), by prelaunch.sh or torchrun (RANK and friends), or by hand.
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "launcher: bash must be 4.4 or later, found $BASH_VERSION: let the ranks run in the image (docs/image.md)" >&2
    exit 64
fi
declare -A INHERITED=() # see lib/inherited.sh
for REPLY in $(compgen -e); do INHERITED[$REPLY]=${!REPLY}; done
unset CDPATH POSIXLY_CORRECT BASH_ENV
set +o posix
set -Eeuo pipefail
IFS=$' \t\n'

LOG_NAME=launcher
JOBS_DIR=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$JOBS_DIR/lib.sh"
# shellcheck source=lib/inherited.sh
source "$JOBS_DIR/lib/inherited.sh"
# shellcheck source=lib/ranks.sh
source "$JOBS_DIR/lib/ranks.sh"

CHILD_PID='' MONITOR_PID='' FOLLOWER_PID='' KILLER_PID=''
STOP_SIGNAL='' INTERRUPTED=0 IS_NODE_TASK=0
exec {TOLD_FD}<> <(:) # holds a line for each program that was told of SIGUSR1

main() {
    DEBUG=$(parse_switch DEBUG "${DEBUG:-0}")
    DDP_MONITOR=$(parse_switch DDP_MONITOR "${DDP_MONITOR:-1}")
    if ((DEBUG)); then trace_start; fi
    DDP_NODE=${DDP_NODE:-$(uname -n)}
    ranks_resolve
    run_defaults
    limits_raise
    if ((IS_NODE_TASK)); then
        run_node "$@"
    else
        run_rank "$@"
    fi
}

# Slurm hands on the soft limits of the shell that submitted: RDMA pins memory (-l), ranks that all talk
# to each other and data loaders need descriptors (-n) and threads (-u).
limits_raise() {
    local letter hard
    ulimit -l unlimited 2>/dev/null || :
    for letter in l n u; do
        hard=$(ulimit -H "-$letter")
        if [[ $letter == n ]] && { [[ $hard == unlimited ]] || ((hard > 1048576)); }; then hard=1048576; fi
        ulimit -S "-$letter" "$hard" 2>/dev/null || :
    done
}

# By hand, without prelaunch.sh, a rank still has a run directory.
run_defaults() {
    export DDP_NODE DDP_JOB_ID=${DDP_JOB_ID:-local-$(date -u +%Y%m%dT%H%M%S)-$$}
    export DDP_OUT=${DDP_OUT:-$PWD/out} DDP_ATTEMPT=${DDP_ATTEMPT:-1}
    export DDP_RUN_DIR=${DDP_RUN_DIR:-$DDP_OUT/slurm-$DDP_JOB_ID}
    export DDP_LAUNCH_ID=${DDP_LAUNCH_ID:-$DDP_JOB_ID.$DDP_ATTEMPT.$$}
    make_writable "$DDP_RUN_DIR/logs"
}

run_rank() {
    local code oom
    build_command "$@"
    LOG=$DDP_RUN_DIR/logs/rank-$RANK.log
    beats_open
    if ((LOCAL_RANK == 0)); then monitor_start; fi
    child_run
    code=$CHILD_CODE
    oom=$(is_oom)
    if [[ $oom == true ]]; then
        echo "launcher: out of memory: Killed by the kernel, because this task used more than it may on $DDP_NODE; ask for more with --mem" >>"$LOG"
    fi
    event_write rank_end rank "$RANK" node "$(json_string "$DDP_NODE")" code "$code" \
        signal "$(json_or_null "$(signal_of_code "$code")")" requested "$(is_requested)" oom "$oom"
    child_sweep
    if ((code == 0)); then peers_wait; fi
    monitor_stop
    beats_close
    follower_stop
    exit "$code"
}

# One task on this node: torchrun starts a launcher per rank, and they do the rest.
run_node() {
    local python worker=("$JOBS_DIR/launcher.sh" "$@")
    python=$(find_python "$JOBS_DIR/..")
    [[ $python ]] || die "DDP_NPROC_PER_NODE needs Python with torch for torchrun, found no python3 on $DDP_NODE: set DDP_PYTHON, or use --ntasks-per-node"
    unset SLURM_PROCID SLURM_LOCALID
    LOG=$DDP_RUN_DIR/logs/torchrun-$DDP_NODE.log
    [[ $(signal_options --ignore-signal=USR1) ]] ||
        die "one task a node needs the program env of coreutils 8.31 or later, found an older one on $DDP_NODE: give --ntasks-per-node instead of DDP_NPROC_PER_NODE"
    # Signals reach the ranks through their launchers; a shell cannot trap what it inherits ignored.
    COMMAND=(env --ignore-signal=USR1 "$python" -m torch.distributed.run
        --nnodes="$NUM_NODES" --node-rank="$NODE_RANK" --nproc-per-node="$DDP_NPROC_PER_NODE"
        --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 --no-python
        env --default-signal=USR1 --default-signal=INT "${worker[@]}")
    child_run
    child_sweep
    # torchrun's own log is long, and only of interest where no rank of this node came up.
    if ((CHILD_CODE)) && ! grep -aqs "\"event\": \"rank_up\".*\"attempt\": $DDP_ATTEMPT,.*\"node\": \"$DDP_NODE\"" "$DDP_RUN_DIR/events.jsonl"; then
        tail -n 20 -- "$LOG" >&2
    fi
    exit "$CHILD_CODE"
}

# build_command: our trainer, or after -- the user's own command.
build_command() {
    local python
    COMMAND_KIND="trainer"
    if [[ ${1-} == -- ]]; then
        shift
        COMMAND_KIND="command"
        (($#)) || die "a command must follow --, found nothing: give one, or leave -- away to run the trainer"
        COMMAND=("$@")
        return 0
    fi
    python=$(find_python "$JOBS_DIR/..")
    [[ $python ]] || die "the trainer needs Python, found none on $DDP_NODE: set DDP_PYTHON, or run in the image"
    mapfile -t COMMAND < <(python_command "$(dirname -- "$JOBS_DIR")" "$python" trainer)
    COMMAND+=("$@")
}

# child_run: from here to its end signals are for the child; see lib.sh for what may run meanwhile.
child_run() {
    child_prepare
    trap 'on_signal TERM' TERM INT HUP
    trap 'on_signal USR1' USR1
    child_start
    child_wait
    trap '' TERM INT HUP USR1
}

# The child carries DDP_RANK_ID, by which its descendants are found, and dies with this script.
child_prepare() {
    local guard defaults
    mapfile -t guard < <(with_parent "$(if ((IS_NODE_TASK)); then echo TERM; else echo KILL; fi)")
    DDP_RANK_ID=$DDP_LAUNCH_ID/${RANK:-node$NODE_RANK}
    touch -- "$LOG"
    LOG_SIZE=$(stat -c %s -- "$LOG")
    OOM_KILLS=$(oom_kills)
    NODE_JSON=$(json_string "$DDP_NODE")
    mapfile -t defaults < <(signal_options --default-signal=INT --default-signal=QUIT)
    inherited_give_back
    COMMAND=(env "${defaults[@]}" "${GIVEN_BACK[@]}" "DDP_RANK_ID=$DDP_RANK_ID" "${guard[@]}" "${COMMAND[@]}")
}

# A rank's command writes to its own log and to nothing else: no pipe can block or outlive it.
child_start() {
    if ((IS_NODE_TASK)); then
        # What its launchers say goes on to the job's log; torchrun's own words do not.
        "${COMMAND[@]}" </dev/null 2>>"$LOG" &
        CHILD_PID=$!
    else
        "${COMMAND[@]}" </dev/null >>"$LOG" 2>&1 &
        CHILD_PID=$!
        beats_add
        follower_start "$((LOG_SIZE + 1))"
        # Of a child that dies meanwhile bash would say so on our standard error, where its log is told.
        {
            (event_write rank_up rank "$RANK" local_rank "$LOCAL_RANK" node "$NODE_JSON" pid "$CHILD_PID" \
                log_offset "$LOG_SIZE" step_id "${SLURM_STEP_ID:-null}") 2>&3 3>&-
        } 3>&2 2>/dev/null
    fi
    if [[ $STOP_SIGNAL ]]; then child_signal "$STOP_SIGNAL"; fi # it came before there was a child
}

# child_wait: sets CHILD_CODE.
child_wait() {
    CHILD_CODE=0
    await "$CHILD_PID" || CHILD_CODE=$?
    if [[ $KILLER_PID ]]; then kill -KILL "$KILLER_PID" 2>/dev/null || :; fi
}

on_signal() {
    INTERRUPTED=1
    STOP_SIGNAL=$1
    if [[ $CHILD_PID ]]; then child_signal "$1"; fi
}

# child_signal NAME. TERM has an end: KILL after the grace, a short one if a rank has failed already,
# because then the others wait in a collective that nobody will complete.
child_signal() {
    local grace=${DDP_GRACE:-25} deadline
    if [[ $1 == USR1 ]]; then
        (
            trap '' TERM INT HUP USR1
            child_notify
        ) &
        disown "$!" 2>/dev/null || :
        return 0
    fi
    kill -TERM "$CHILD_PID" 2>/dev/null || :
    if [[ $KILLER_PID ]]; then return 0; fi
    # Aside: a trap takes no time, and reads nothing (see lib.sh).
    (
        trap '' TERM INT HUP USR1 # Slurm signals every process of a step, and again and again
        if attempt_has_failed; then grace=3; fi
        deadline=$((SECONDS + grace))
        while ((SECONDS <= deadline)); do
            process_alive "$$" || exit 0
            pause 0.5
        done
        kill -KILL "$CHILD_PID" 2>/dev/null
    ) &
    KILLER_PID=$!
    disown "$KILLER_PID" 2>/dev/null || : # bash reports a killed job that it knows
}

# Code 75 is no failure: the others may still be writing their checkpoint.
attempt_has_failed() {
    grep -asE "\"event\": \"rank_end\".*\"attempt\": $DDP_ATTEMPT,.*\"code\": [1-9].*\"requested\": false" \
        "$DDP_RUN_DIR/events.jsonl" | grep -v "\"code\": $EXIT_STOPPED," >/dev/null
}

# SIGUSR1 ends a program that has no handler for it, so only those that have one are told, and a
# program that is still starting is told as soon as it has one.
child_notify() {
    local pid pids
    while process_alive "$CHILD_PID"; do
        if catches_signal "$CHILD_PID" USR1; then
            echo >&"$TOLD_FD" # before it may end of it
            kill -USR1 "$CHILD_PID" 2>/dev/null || :
            return 0
        fi
        pids=()
        while IFS= read -r pid; do
            if catches_signal "$pid" USR1; then pids+=("$pid"); fi
        done < <(processes_with "DDP_RANK_ID=$DDP_RANK_ID")
        if ((${#pids[@]})); then
            echo >&"$TOLD_FD"
            kill -USR1 "${pids[@]}" 2>/dev/null || :
            return 0
        fi
        pause 1
    done
}

# Was the command told to end? Who has no handler for SIGUSR1 was not, and failed by its own doing.
is_requested() {
    if [[ $KILLER_PID ]] || read -rt 0 -u "$TOLD_FD"; then echo true; else echo false; fi
}

# Has the kernel ended the command for want of memory? Another cgroup's count would say nothing.
is_oom() {
    local kills
    kills=$(oom_kills)
    if ((CHILD_CODE == 137)) && [[ $kills && $kills != "$OOM_KILLS" && $kills != *' 0' ]]; then
        echo true
    else
        echo false
    fi
}

# What the command left behind, data loaders and detached children.
child_sweep() {
    local leftovers
    mapfile -t leftovers < <({ processes_with "DDP_RANK_ID=$DDP_RANK_ID" && processes_writing "$LOG"; } | sort -u)
    stop_processes 2 "${leftovers[@]}"
}

# follower_start OFFSET: copies the log to the job's own as it grows, until the child ends. A last line
# without an end gets one: what other ranks and the job say next must not be taken for its own.
follower_start() {
    (
        trap '' TERM INT HUP USR1
        {
            tail -c "+$1" -s 0.1 -f --pid="$CHILD_PID" -- "$LOG"
            if (($(stat -c %s -- "$LOG") >= $1 && $(tail -c 1 -- "$LOG" | wc -l) == 0)); then echo; fi
        } | sed -u "s/^/[$RANK] /"
    ) &
    FOLLOWER_PID=$!
    disown "$FOLLOWER_PID"
}

follower_stop() {
    local deadline=$((SECONDS + 5))
    while process_alive "$FOLLOWER_PID" && ((SECONDS < deadline)); do pause 0.05; done
    kill -KILL "$FOLLOWER_PID" 2>/dev/null || :
}

# beats_open: where the ranks of this node beat and the monitor looks; in memory if it can be.
beats_open() {
    local parent
    if ((LOCAL_RANK == 0)); then beats_sweep; fi
    for parent in /dev/shm "${TMPDIR:-/tmp}"; do
        export DDP_BEAT_DIR=$parent/ddp.$DDP_LAUNCH_ID.$DDP_NODE
        mkdir -m 700 -- "$DDP_BEAT_DIR" 2>/dev/null || : # another rank of this node may have
        # A name that can be guessed: what another user made in our place is not ours.
        if [[ -d $DDP_BEAT_DIR && -O $DDP_BEAT_DIR && ! -L $DDP_BEAT_DIR ]]; then
            # Torch's flight recorder dumps when something is written to <this><rank>.pipe.
            export TORCH_NCCL_DEBUG_INFO_PIPE_FILE=${TORCH_NCCL_DEBUG_INFO_PIPE_FILE:-$DDP_BEAT_DIR/nccl-rank-}
            return 0
        fi
    done
    unset DDP_BEAT_DIR
    log_info "nobody watches for hung ranks on $DDP_NODE: neither /dev/shm nor ${TMPDIR:-/tmp} can be written"
}

# beats_sweep: what launchers of other jobs left that were killed together with their monitors.
beats_sweep() {
    local old file pid
    while IFS= read -r old; do
        for file in "$old"/child-*; do
            if { read -r pid _ <"$file"; } 2>/dev/null && process_alive "$pid"; then continue 2; fi
        done
        rm -rf -- "$old"
    done < <(find /dev/shm -maxdepth 1 -type d -name 'ddp.*' -user "$EUID" -mmin +10 2>/dev/null)
}

# beats_add: tells the monitor which process this rank's command is.
beats_add() {
    if [[ ${DDP_BEAT_DIR-} ]]; then
        echo "$CHILD_PID $LOCAL_RANK $COMMAND_KIND" 2>/dev/null >"$DDP_BEAT_DIR/child-$RANK" || :
    fi
}

beats_close() {
    [[ ${DDP_BEAT_DIR-} ]] || return 0
    rm -f -- "$DDP_BEAT_DIR/child-$RANK"
    if ((LOCAL_RANK == 0)); then rm -rf -- "$DDP_BEAT_DIR"; fi
}

# peers_wait: whoever hangs while it says goodbye is watched, too, until the node's last rank ends.
peers_wait() {
    local file pid
    [[ $MONITOR_PID && ${DDP_BEAT_DIR-} ]] || return 0
    for file in "$DDP_BEAT_DIR"/child-*; do
        [[ $file != */child-"$RANK" ]] || continue
        while [[ -e $file ]] && { read -r pid _ <"$file"; } 2>/dev/null && process_alive "$pid"; do
            pause 0.1
        done
    done
}

# The monitor decides only that ranks hang: without it they run on.
monitor_start() {
    local python monitor guard
    ((DDP_MONITOR)) || return 0
    python=$(find_python "$JOBS_DIR/..")
    if [[ ! $python ]]; then
        log_info "no monitor on $DDP_NODE: no python3; set DDP_PYTHON"
        return 0
    elif ! python_is_new "$python"; then
        log_info "no monitor on $DDP_NODE: it needs Python 3.11 or later, found $("$python" -V 2>&1 | head -n 1) at $python; set DDP_PYTHON"
        return 0
    fi
    mapfile -t monitor < <(python_command "$(dirname -- "$JOBS_DIR")" "$python" monitor)
    mapfile -t guard < <(with_parent TERM)
    MONITOR_LOG=$DDP_OUT/slurm-$DDP_JOB_ID.$DDP_NODE.gutil
    (
        trap '' USR1 # it may reach every process of the step, before Python has a handler for it
        exec "${guard[@]}" "${monitor[@]}" record --out "$MONITOR_LOG" \
            --interval "${DDP_MONITOR_INTERVAL:-15}" --compose "$DDP_RUN_DIR" --launch-id "$DDP_LAUNCH_ID"
    ) </dev/null >>"$DDP_RUN_DIR/logs/monitor-$DDP_NODE.log" 2>&1 &
    MONITOR_PID=$!
    event_write monitor_up node "$(json_string "$DDP_NODE")" pid "$MONITOR_PID"
}

monitor_stop() {
    local code=0 deadline=$((SECONDS + 3))
    [[ $MONITOR_PID ]] || return 0
    # A command of a blink still has its log: the monitor writes a first sample before it can stop.
    while [[ ! -s $MONITOR_LOG ]] && process_alive "$MONITOR_PID" && ((SECONDS < deadline)); do
        pause 0.05
    done
    stop_processes 3 "$MONITOR_PID"
    wait "$MONITOR_PID" 2>/dev/null || code=$? # its stderr: bash announces killed jobs there
    event_write monitor_end node "$(json_string "$DDP_NODE")" pid "$MONITOR_PID" code "$code"
}

main "$@"
