# shellcheck shell=bash disable=SC2153 # set by the other parts
# The guard: watches one step from beside srun, and ends it where srun would wait for ever.
#
# srun ends a step at its first bad exit, but it waits for every node, also for one that is gone; and
# where a node dies silently, its peers wait in a collective and nobody exits at all.

readonly GUARD_TEARDOWN_S=8 # from the first failure to the end of srun

GUARD_STEP_ID=''
declare -A GUARD_UP=() GUARD_TRACES=() GUARD_HEARD=()

# guard_start: in the background, until guard_stop or the end of this script.
guard_start() {
    rm -f -- "$WORK_DIR/guard"
    (
        trap '' INT TERM HUP USR1
        trap - EXIT
        set +e
        guard_watch
    ) </dev/null &
    GUARD_PID=$!
    disown "$GUARD_PID" # bash reports a killed job that it knows
}

guard_stop() {
    if [[ $GUARD_PID ]]; then kill -KILL "$GUARD_PID" 2>/dev/null || :; fi
    GUARD_PID=''
}

guard_watch() {
    local events line partial='' failed_at='' look_at=$SECONDS
    exec {events}<"$DDP_RUN_DIR/events.jsonl"
    head -c "$(<"$WORK_DIR/events_before")" <&"$events" >/dev/null # a long run's past may be large
    while process_alive "$$"; do
        { : <"$DDP_RUN_DIR/events.jsonl"; } 2>/dev/null # an open has NFS ask the server, for ours, too
        while IFS= read -r line <&"$events"; do
            guard_see "$partial$line"
            partial=''
        done
        partial+=$line # a line that is not complete yet
        if [[ $failed_at ]] && ((SECONDS - failed_at >= GUARD_TEARDOWN_S)); then
            guard_end_step failed
            return 0
        fi
        if [[ $PLACE != *-local ]] && ((NUM_NODES > 1 && SECONDS >= look_at)); then
            look_at=$((SECONDS + 2 + NUM_NODES / 16))
            guard_look_at_nodes || return 0
        fi
        pause 1
    done
    guard_end_orphans
}

# The script was killed. Slurm ends its step, too, but only after the batch step, for whose end Pyxis first
# removes an unpacked container: on a slow disk the ranks would train on for a minute.
guard_end_orphans() {
    local steps=()
    [[ $PLACE == container-srun ]] || return 0
    guard_step_ids
    if ((${#steps[@]})); then timeout -k 1 30 scancel --signal=TERM "${steps[@]}" 2>/dev/null; fi
}

# guard_see EVENT: which ranks are up, and when the first one failed or a verdict was given.
guard_see() {
    local rank
    [[ $1 == *"\"attempt\": $DDP_ATTEMPT,"* ]] || return 0
    rank=$(event_field rank "$1")
    case $1 in
        *'"event": "rank_up"'*)
            GUARD_UP[$rank]=$(event_field node "$1")
            if [[ $1 =~ '"step_id": '([0-9]+) ]]; then GUARD_STEP_ID=${BASH_REMATCH[1]}; fi
            ;;
        *'"event": "verdict"'*) failed_at=${failed_at:-$SECONDS} ;;
        *'"event": "rank_end"'*)
            unset "GUARD_UP[$rank]"
            if [[ $1 =~ '"code": '([0-9]+) ]] && ((BASH_REMATCH[1] != 0 && BASH_REMATCH[1] != EXIT_STOPPED)) &&
                [[ $1 == *'"requested": false'* ]]; then
                failed_at=${failed_at:-$SECONDS}
            fi
            ;;
    esac
}

# guard_look_at_nodes: fails when one is lost, and then the step is ended.
guard_look_at_nodes() {
    local node traces quiet_s=$((DDP_MONITOR_INTERVAL + 5))
    for node in "${NODES[@]}"; do
        if [[ $node == "$DDP_NODE" || " ${GUARD_UP[*]} " != *" $node "* ]]; then continue; fi
        traces=$(guard_traces "$node")
        if [[ $traces != "${GUARD_TRACES[$node]-}" ]]; then
            GUARD_TRACES[$node]=$traces GUARD_HEARD[$node]=$SECONDS
        elif ((SECONDS - GUARD_HEARD[$node] >= quiet_s)); then
            GUARD_HEARD[$node]=$SECONDS # it may be quiet and well: then it is asked again later
            if nodes_lost "$node"; then
                log_info "$node is lost: $HOW"
                event_write lost_node node "$(json_string "$node")" how "$(json_string "$HOW")"
                guard_end_step "lost $node"
                return 1
            fi
        fi
    done
}

# guard_traces NODE: size and time of what its monitor writes, or without one its ranks.
guard_traces() {
    local rank files=()
    if ((DDP_MONITOR)); then
        files=("$DDP_OUT/slurm-$DDP_JOB_ID.$1.gutil")
    else
        for rank in "${!GUARD_UP[@]}"; do
            if [[ ${GUARD_UP[$rank]} == "$1" ]]; then files+=("$DDP_RUN_DIR/logs/rank-$rank.log"); fi
        done
    fi
    stat -c '%n %s %y' -- "${files[@]}" 2>/dev/null
}

# guard_end_step WHY: on the nodes that answer Slurm ends what runs; srun is not waited for.
guard_end_step() {
    local steps=() deadline=$((SECONDS + 4))
    printf '%s\n' "$1" >"$WORK_DIR/guard"
    if [[ $PLACE != *-local ]]; then
        guard_step_ids
        # It reaches the others at once, and then waits long for the node that is gone.
        if ((${#steps[@]})); then timeout -k 1 30 scancel --signal=KILL "${steps[@]}" 2>/dev/null & fi
        while ((SECONDS < deadline && ${#steps[@]})) && process_alive "${STEP_PIDS[0]}"; do pause 0.2; done
    fi
    kill -KILL "${STEP_PIDS[@]}" 2>/dev/null
}

# guard_step_ids: sets steps, only this attempt's: a shell's own or a neighbour's is none of it. If no
# rank came up to name it, it is known by its program, but in a shell's allocation it may be another's.
guard_step_ids() {
    if [[ $GUARD_STEP_ID ]]; then
        steps=("$SLURM_JOB_ID.$GUARD_STEP_ID")
    elif ((! INTERACTIVE)); then
        mapfile -t steps < <(timeout -k 1 10 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' |
            awk '$2 == "launcher.sh" { print $1 }')
    fi
}
