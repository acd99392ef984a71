# shellcheck shell=bash disable=SC2034,SC2153 # set here, read by the other parts
# One job at a time writes into a run directory.
#
# The lock is the file lock.<n> with the highest number. Whoever may take it makes lock.<n+1> as a
# link to a file of its own, which succeeds for one of several on any shared file system (flock does
# not hold on all of them). Numbers only grow, so that nobody takes a lock from a new owner that he
# has seen with an old one. The file holds one line:
#
#   JOB RESTARTS HOST PID_NAMESPACE PID START LAUNCH_ID      JOB is - without Slurm; or: released

readonly LOCK_FRESH_S=60   # a lock renewed so lately has an owner, where nothing else can be asked
readonly LOCK_LONGEST_S=60 # between two looks: each asks Slurm's controller
readonly LOCK_ORPHANS='the ranks of a script that was killed'

LOCK_FILE='' LOCK_ASKED=0

# lock_take: returns when this job owns the run directory. Traps are set here only while it waits.
lock_take() {
    local owner said=0 said_at=0 delay_s=2
    LOCK_ASKED=$SECONDS
    lock_try
    [[ ! $LOCK_FILE ]] || return 0
    if [[ $(<"$WORK_DIR/owner") == nobody ]]; then
        rmdir -- "$DDP_RUN_DIR" 2>/dev/null || :
        die "the run directory must be writable, found that no file can be written into $DDP_RUN_DIR: is the disk full, or a quota reached?"
    fi
    trap 'STOP_SIGNAL=TERM INTERRUPTED=1' INT TERM HUP USR1
    while [[ ! $LOCK_FILE && ! $STOP_SIGNAL ]]; do
        read -r owner <"$WORK_DIR/owner"
        # Nobody starts such ranks again: they save, and are gone when their grace is over.
        if [[ $owner == "$LOCK_ORPHANS"* ]]; then delay_s=2; elif [[ $DDP_ON_BUSY != wait ]]; then lock_refuse; fi
        if ((! said || SECONDS - said_at >= DDP_TIMESTAMP_INTERVAL)); then
            log_info "waiting for the run ${DDP_RUN_DIR##*/}: it belongs to $owner"
            said=1 said_at=$SECONDS
        fi
        pause_unless_stopped "$delay_s"
        delay_s=$((delay_s < LOCK_LONGEST_S / 2 ? 2 * delay_s : LOCK_LONGEST_S))
        lock_try
    done
    if [[ $STOP_SIGNAL ]]; then lock_stop; fi
    trap - INT TERM HUP USR1
}

lock_refuse() {
    local owner
    read -r owner <"$WORK_DIR/owner"
    die "the run ${DDP_RUN_DIR##*/} must have one job at a time, found that it belongs to $owner: wait for its end, or end it, or choose another DDP_RUN_NAME, or set DDP_ON_BUSY=wait"
}

lock_stop() {
    lock_release '' # it may just have become ours
    log_info "stopped while waiting for the run ${DDP_RUN_DIR##*/}; nothing was started"
    exit "$EXIT_STOPPED"
}

# lock_try: sets LOCK_FILE if the lock could be had, else leaves the owner's name in a file.
lock_try() {
    aside lock_attempt || :
    { read -r LOCK_FILE <"$WORK_DIR/lock"; } 2>/dev/null || :
}

# lock_attempt, aside.
lock_attempt() {
    local number owner='' mine=$DDP_RUN_DIR/.lock-$DDP_LAUNCH_ID
    rm -f -- "$WORK_DIR/lock"
    number=$(lock_number)
    if ! { lock_line >"$mine"; } 2>/dev/null; then
        echo nobody >"$WORK_DIR/owner"
    elif ((number)) && { ! read -r owner <"$DDP_RUN_DIR/lock.$number"; } 2>/dev/null; then
        echo 'another job that has just taken it' >"$WORK_DIR/owner"
    elif ((number)) && lock_is_held "$owner" "$number" "$mine"; then
        lock_name "$owner" >"$WORK_DIR/owner"
    elif ((number)) && lock_has_orphans "$owner"; then
        echo "$LOCK_ORPHANS, $(lock_name "$owner")" >"$WORK_DIR/owner"
    else
        lock_link "$mine" $((number + 1))
    fi
    rm -f -- "$mine"
}

# lock_link MINE NUMBER: of several who try it at once, one succeeds.
lock_link() {
    local lock=$DDP_RUN_DIR/lock.$2
    # A network file system may report a failure for a link that it made.
    ln -- "$1" "$lock" 2>/dev/null || :
    if [[ $1 -ef $lock ]] && (($(lock_number) == $2)); then
        printf '%s\n' "$lock" >"$WORK_DIR/lock"
        rm -f -- "$DDP_RUN_DIR/lock.$(($2 - 1))"
    else
        if [[ $1 -ef $lock ]]; then rm -f -- "$lock"; fi # there is a higher one: this one was old
        echo 'another job that has just taken it' >"$WORK_DIR/owner"
    fi
}

# lock_number: the highest one, 0 if there is none.
lock_number() {
    local file number highest=0
    for file in "$DDP_RUN_DIR"/lock.*; do
        number=${file##*.}
        if [[ $number =~ ^[0-9]+$ ]] && ((number > highest)); then highest=$number; fi
    done
    echo "$highest"
}

lock_line() {
    local job=-
    if ((UNDER_SLURM)); then job=$(requeue_name); fi
    printf '%s\n' "$job ${SLURM_RESTART_COUNT:-0} $(uname -n) $(lock_namespace) $$ $(lock_start_of "$$") $DDP_LAUNCH_ID"
}

lock_namespace() {
    readlink /proc/self/ns/pid || echo -
}

# lock_is_here HOST NAMESPACE: do ids of its processes mean something to us?
lock_is_here() {
    [[ $1 == "$(uname -n)" && $2 == "$(lock_namespace)" ]]
}

# lock_start_of PID: when it started, in the kernel's ticks: a number used again is another process.
lock_start_of() {
    local stat fields
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    read -ra fields <<<"${stat##*) }"
    echo "${fields[19]}"
}

# lock_is_held OWNER NUMBER MINE: does the owner live? In doubt it does. MINE is a file just written.
lock_is_held() {
    local job restarts host namespace pid start states
    read -r job restarts host namespace pid start _ <<<"$1"
    [[ $job != released ]] || return 1
    if ((UNDER_SLURM && HAVE_CLIENT)) && [[ $job == "$(requeue_name)" && $restarts != "${SLURM_RESTART_COUNT:-0}" ]]; then
        return 1 # this very job, before its requeue
    fi
    if ((UNDER_SLURM && HAVE_CLIENT)) && [[ $job != - && $job != "$(requeue_name)" ]]; then
        # Only what Slurm still knows as waiting, running or completing is listed.
        if states=$(timeout -k 1 30 squeue --noheader --jobs="$job" --format=%T 2>&1); then [[ $states ]] && return 0; fi
        [[ ! $states || $states == *'Invalid job id'* ]] && return 1
        return 0
    fi
    if lock_is_here "$host" "$namespace"; then
        [[ $start == "$(lock_start_of "$pid")" ]]
        return
    fi
    lock_is_fresh "$DDP_RUN_DIR/lock.$2" "$3"
}

# lock_has_orphans OWNER: does anything on this machine still run that the dead owner started, in any of its
# attempts? It may be writing a checkpoint, but no longer than the ranks' grace.
lock_has_orphans() {
    local host namespace pid launch other others
    read -r _ _ host namespace pid _ launch <<<"$1"
    lock_is_here "$host" "$namespace" && [[ $launch == *.*."$pid" ]] || return 1
    ((SECONDS <= LOCK_ASKED + ${DDP_GRACE:-25} + 5)) || return 1
    others=$(grep -hoszxE 'DDP_LAUNCH_ID=.*' /proc/[0-9]*/environ | tr '\0' '\n' | sort -u) || :
    while IFS= read -r other; do
        if [[ $other == "DDP_LAUNCH_ID=${launch%.*.*}."*".$pid" ]]; then return 0; fi
    done <<<"$others"
    return 1
}

# lock_is_fresh FILE NOW: by the file system's own clock; those of two machines may differ.
lock_is_fresh() {
    local renewed now
    renewed=$(stat -c %Y -- "$1") || return 1
    now=$(stat -c %Y -- "$2") || return 0
    ((now - renewed < LOCK_FRESH_S))
}

# lock_name OWNER: in words.
lock_name() {
    local job restarts host namespace pid
    read -r job restarts host namespace pid _ <<<"$1"
    if [[ $job == - ]]; then
        echo "process $pid on $host"
    elif [[ $host == - ]]; then
        echo "job $job" # a successor that has not begun
    else
        echo "job $job on $host"
    fi
}

lock_renew() {
    if [[ $LOCK_FILE ]]; then touch -c -- "$LOCK_FILE" 2>/dev/null || :; fi
}

# lock_release [JOB]: to anybody, or to a successor that waits in Slurm's queue.
lock_release() {
    [[ $LOCK_FILE ]] || return 0
    if [[ ${1-} ]]; then
        printf '%s\n' "$1 - - - - - -" >"$LOCK_FILE.new"
    else
        echo released >"$LOCK_FILE.new"
    fi && mv -f -- "$LOCK_FILE.new" "$LOCK_FILE" || :
    LOCK_FILE=''
}
