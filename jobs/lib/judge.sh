# shellcheck shell=bash
# The end of an attempt: the first failing rank and the job's own exit code, from events.jsonl.

# judge_failure: sets FAILED_RANK, FAILED_NODE and FAILED_CODE, empty if no rank failed; and
# FAILED_BY_REQUEST if that rank only ended because it had been told to.
#
# A rank that came up and never ended lost its launcher to SIGKILL, or its node: that is the cause,
# and the errors of its peers follow from it. Else the first that failed without being told to stop.
judge_failure() {
    local line rank code
    local -A up=()
    local first='' stopped=''
    FAILED_RANK='' FAILED_NODE='' FAILED_CODE=0 FAILED_BY_REQUEST=0
    while IFS= read -r line; do
        rank=$(event_field rank "$line")
        if [[ $line == *'"event": "rank_up"'* ]]; then
            up[$rank]=$(event_field node "$line")
            continue
        fi
        unset "up[$rank]"
        code=$(event_field code "$line")
        ((code)) || continue
        if [[ $line == *'"requested": false'* ]]; then first=${first:-$line}; else stopped=${stopped:-$line}; fi
    done < <(grep -E "\"event\": \"rank_(up|end)\".*\"attempt\": $DDP_ATTEMPT," "$DDP_RUN_DIR/events.jsonl" || :)
    if ((${#up[@]})); then
        FAILED_RANK=$(printf '%s\n' "${!up[@]}" | sort -n | head -n 1)
        FAILED_NODE=${up[$FAILED_RANK]}
        FAILED_CODE=$((STEP_CODE > 128 ? STEP_CODE : 137))
    elif [[ $first$stopped ]]; then
        line=${first:-$stopped}
        if [[ ! $first ]]; then FAILED_BY_REQUEST=1; fi
        FAILED_RANK=$(event_field rank "$line")
        FAILED_NODE=$(event_field node "$line")
        FAILED_CODE=$(event_field code "$line")
    fi
}

# judge_code: the first failing rank's code, else what the step itself ended with.
judge_code() {
    if [[ $FAILED_RANK ]]; then echo "$FAILED_CODE"; else echo "$STEP_CODE"; fi
}

# judge_report CODE: the end of the failed rank's log, then the one line that says it all.
judge_report() {
    local log=$DDP_RUN_DIR/logs/rank-$FAILED_RANK.log
    if (($1 == 0)); then
        log_info "all $WORLD_SIZE ranks finished; $DDP_RUN_DIR"
    elif [[ ! $FAILED_RANK ]]; then
        log_info "the ranks could not be started: the step $(describe_code "$1"); see the lines above"
    elif (($1 == 75)); then
        log_info "stopped on request, a checkpoint is written (code 75); start again with DDP_RUN_NAME=${DDP_RUN_DIR##*/} to go on"
    elif [[ $STOP_SIGNAL ]] && ((FAILED_BY_REQUEST)); then
        log_info "stopped on request (SIG$STOP_SIGNAL); rank $FAILED_RANK on $FAILED_NODE $(describe_code "$1"); its log: $log"
    else
        log_info "the end of $log:"
        tail -n 20 -- "$log" 2>/dev/null | sed 's/^/    /' >&2 || :
        log_info "rank $FAILED_RANK on $FAILED_NODE $(describe_code "$1"); its log: $log"
    fi
}

judge_event() {
    if [[ ! $FAILED_RANK ]] || ((FAILED_BY_REQUEST)); then return 0; fi
    event_write first_failure rank "$FAILED_RANK" node "$(json_string "$FAILED_NODE")" \
        code "$FAILED_CODE" signal "$(json_or_null "$(signal_of_code "$FAILED_CODE")")"
}
