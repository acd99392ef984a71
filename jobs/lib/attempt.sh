# shellcheck shell=bash disable=SC2034,SC2153 # set here, read by the other parts
# The attempts: one start of all ranks after the other, within the allocation this job has.
#
# All of this runs while signals may arrive: what needs substitutions is done aside (see lib.sh), in
# a subshell that leaves its results in a file of $WORK_DIR, one a line.

# attempts_run: returns when no further attempt is to follow; CODE, DECISION and LAST_WORDS say why.
attempts_run() {
    if [[ $DECISION ]]; then return 0; fi # by attempts_count
    while :; do
        attempt_open
        attempt_step
        attempt_close
        [[ $DECISION == restart ]] || return 0
        pause_unless_stopped "$DELAY_S"
        attempt_next
    done
}

# attempts_count: the counters of a run that carries on where a requeued job left it; and, if they say
# that it would for ever, the decision that nothing starts.
attempts_count() {
    local decision told_at saved_at silent
    checkpoint_latest
    LATEST_AT_JOB_START=$LATEST
    decision=$(grep -as '"event": "decision"' "$DDP_RUN_DIR/events.jsonl" | tail -n 1) || :
    case $(event_field decision "$decision") in
        requeue | successor)
            IDLE=$(event_field idle "$decision")
            if [[ $(event_field carries_on "$decision") == true ]]; then attempts_carry_on; fi
            ;;
    esac
    # Slurm requeues a job whose node died, too, and then nobody was left to decide and to count.
    ((${SLURM_RESTART_COUNT:-0} > 0)) || return 0
    attempts_tell_lost
    told_at=$(event_field attempt "$decision") || :
    saved_at=$(event_field attempt "$(grep -as '"event": "checkpoint"' "$DDP_RUN_DIR/events.jsonl" | tail -n 1)") || :
    silent=$((DDP_ATTEMPT - 1 - (${saved_at:-0} > ${told_at:-0} ? saved_at : ${told_at:-0})))
    IDLE=$((IDLE + silent))
    if ((silent > DDP_MAX_IDLE_RESTARTS)); then decide_no_start "$silent"; fi
}

# attempts_tell_lost: when the script's own node dies nobody tells: the next start does, if Slurm knows.
attempts_tell_lost() {
    local before=$((DDP_ATTEMPT - 1)) told node
    told=$(grep -asE "\"event\": \"(start|signal|end)\".*\"attempt\": $before," "$DDP_RUN_DIR/events.jsonl" | tail -n 1) || :
    [[ $told == *'"event": "start"'* && $told =~ '"nodes": ["'([^\"]+) ]] || return 0
    node=${BASH_REMATCH[1]}
    if nodes_lost "$node" || nodes_rebooted "$node" "$(event_field time "$told")"; then
        DDP_ATTEMPT=$before event_write lost_node node "$(json_string "$node")" how "$(json_string "$HOW")" afterwards true
        log_info "start $before ended with node $node, where its script ran: $HOW; Slurm has requeued the job"
    fi
}

# attempts_carry_on: whatever the user wanted to begin with (--resume none, another run's checkpoint),
# a later start of our trainer carries on with what this run has itself.
attempts_carry_on() {
    if ((IS_OWN_COMMAND || CARRIES_ON)); then return 0; fi
    CARRIES_ON=1
    ARGUMENTS+=(--resume auto)
}

attempt_open() {
    STEP_CODE=0 STEP_PIDS=() ATTEMPT_IS_OPEN=1 ATTEMPT_BEGAN=$SECONDS
    checkpoint_latest
    LATEST_AT_START=$LATEST
    aside attempt_tell || :
}

attempt_tell() {
    hide_secrets "${ARGUMENTS[@]}"
    { stat -c %s -- "$DDP_RUN_DIR/events.jsonl" 2>/dev/null || echo 0; } >"$WORK_DIR/events_before"
    event_write start job_id "$(json_string "$DDP_JOB_ID")" run "$(json_string "${DDP_RUN_DIR##*/}")" \
        place "$(json_string "$PLACE")" nodes "$(json_list "${NODES[@]}")" world_size "$WORLD_SIZE" \
        command "$(json_list "${SHOWN[@]}")" restart_count "${SLURM_RESTART_COUNT:-0}" \
        image "$(json_or_null "$(image_path)")" image_digest "$(json_or_null "$(image_digest)")"
    event_write settings settings "$(settings_json)"
}

# A signal that came before the ranks starts none.
attempt_step() {
    if [[ $STOP_SIGNAL ]]; then
        STEP_CODE=$EXIT_STOPPED
        return 0
    fi
    step_build "${ARGUMENTS[@]}"
    step_start
    if [[ $STOP_SIGNAL ]]; then step_stop "$STOP_SIGNAL"; fi # it came before there was a step
    guard_start
    step_wait
    guard_stop
    STEP_PIDS=()
}

# attempt_close: sets CODE, and what decide sets.
attempt_close() {
    rm -f -- "$WORK_DIR/decision"
    aside attempt_judge || :
    {
        read -r CODE
        read -r DECISION
        read -r RESTARTS
        read -r IDLE
        read -r DELAY_S
        read -r FATE
        read -r EXCLUDE
        read -r LAST_WORDS
    } 2>/dev/null <"$WORK_DIR/decision" || {
        CODE=$((STEP_CODE ? STEP_CODE : EXIT_FAILED)) DECISION=fail
        LAST_WORDS="how the ranks ended could not be judged; see $DDP_RUN_DIR/logs"
    }
    LOST_NODES=$EXCLUDE ATTEMPT_IS_OPEN=0
}

# attempt_judge, aside: the end of the step, who failed, what follows, and the record of it.
attempt_judge() {
    step_end
    judge_failure
    judge_event
    checkpoint_latest
    decide
    event_write decision decision "$(json_string "$DECISION")" reason "$(json_string "$REASON")" \
        restarts "$RESTARTS" idle "$IDLE" exclude "$(json_or_null "${EXCLUDE// /,}")" carries_on "$(attempt_carries_on)"
    event_write end code "$CODE"
    judge_show_log
    printf '%s\n' "$CODE" "$DECISION" "$RESTARTS" "$IDLE" "$DELAY_S" \
        "$FATE" "$EXCLUDE" "$LAST_WORDS" >"$WORK_DIR/decision"
    if [[ $DECISION == restart ]]; then log_info "$LAST_WORDS"; fi
    compose_record
}

# Has this run, since it was submitted, a checkpoint of its own?
attempt_carries_on() {
    if ((CARRIES_ON)) || [[ $LATEST != "$LATEST_AT_JOB_START" ]]; then echo true; else echo false; fi
}

# attempt_next: what is different in every attempt: its number, its token and its port.
attempt_next() {
    DDP_ATTEMPT=$((DDP_ATTEMPT + 1))
    DDP_LAUNCH_ID=$DDP_JOB_ID.$DDP_ATTEMPT.$$
    if [[ $STOP_SIGNAL ]]; then return 0; fi
    checkpoint_latest
    if [[ $LATEST != "$LATEST_AT_JOB_START" ]]; then attempts_carry_on; fi
    if [[ $LOST_NODES ]]; then nodes_do_without "$LOST_NODES"; fi
    rm -f -- "$WORK_DIR/master"
    aside attempt_master || :
    # Without a new port the old one is as good: its owner is gone.
    if [[ -s $WORK_DIR/master ]]; then read -r MASTER_ADDR MASTER_PORT <"$WORK_DIR/master"; fi
}

attempt_master() {
    master_resolve
    printf '%s %s\n' "$MASTER_ADDR" "$MASTER_PORT" >"$WORK_DIR/master"
}

# checkpoint_latest: sets LATEST to what checkpoints/latest names, empty if there is none. Where that
# file is damaged it is the largest step that is there: noise must not get into the events.
checkpoint_latest() {
    local folder step largest=-1
    local listed=("$DDP_RUN_DIR"/checkpoints/*) # NFS asks the server, and forgets that there was none
    LATEST=''
    { read -r LATEST <"$DDP_RUN_DIR/checkpoints/latest"; } 2>/dev/null ||
        [[ -e $DDP_RUN_DIR/checkpoints/latest ]] || return 0
    if [[ $LATEST =~ ^step-[0-9]{1,18}$ ]]; then return 0; fi
    LATEST=''
    for folder in "$DDP_RUN_DIR"/checkpoints/step-*; do
        step=${folder##*/step-}
        if [[ $step =~ ^[0-9]{1,18}$ ]] && ((10#$step > largest)); then
            largest=$((10#$step)) LATEST=step-$step
        fi
    done
}

# The run record is a view of the events; without our Python it is made later, on demand.
compose_record() {
    local python compose
    python=$(find_python "$JOBS_DIR/..")
    if [[ ! $python ]] || ! python_is_new "$python"; then return 0; fi
    mapfile -t compose < <(python_command "$(dirname -- "$JOBS_DIR")" "$python" monitor)
    timeout -k 1 60 "${compose[@]}" compose "$DDP_RUN_DIR" </dev/null >/dev/null ||
        log_info "the run record is not composed; later: python -m monitor compose $DDP_RUN_DIR"
}

image_path() {
    printf '%s' "${DDP_IMAGE:-${SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image-}}"
}

# container/to_squashfs.sh leaves the digest beside the file.
image_digest() {
    local image
    image=$(image_path)
    if [[ -r $image.sha256 ]]; then cut -d' ' -f1 <"$image.sha256"; fi
}
