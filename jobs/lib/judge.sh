# shellcheck shell=bash disable=SC2153 # set by the other parts
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

# judge_words: what happened, in the words of the job's last line.
judge_words() {
    local log=$DDP_RUN_DIR/logs/rank-$FAILED_RANK.log
    if ((CODE == 0)); then
        echo "all $WORLD_SIZE ranks finished; $DDP_RUN_DIR"
    elif ((CODE == EXIT_STOPPED)) && [[ $FAILED_RANK ]]; then
        echo "stopped on request${STOP_SIGNAL:+ (SIG$STOP_SIGNAL)}, a checkpoint is written (code $CODE)"
    elif ((CODE == EXIT_STOPPED)); then
        echo "stopped on request${STOP_SIGNAL:+ (SIG$STOP_SIGNAL)} before the ranks were started (code $CODE)"
    elif [[ ! $FAILED_RANK ]]; then
        echo "the ranks could not be started: the step $(describe_code "$CODE"), see the lines above"
    elif [[ $STOP_SIGNAL ]] && ((FAILED_BY_REQUEST)); then
        echo "stopped on request (SIG$STOP_SIGNAL); rank $FAILED_RANK on $FAILED_NODE $(describe_code "$CODE"); its log: $log"
    else
        echo "rank $FAILED_RANK on $FAILED_NODE $(describe_code "$CODE"); its log: $log"
    fi
}

# judge_show_log: the last lines of the failed rank's log, before the line that names it.
judge_show_log() {
    local log=$DDP_RUN_DIR/logs/rank-$FAILED_RANK.log
    if [[ ! $FAILED_RANK ]] || ((CODE == EXIT_STOPPED || FAILED_BY_REQUEST)); then return 0; fi
    log_info "the end of $log:"
    tail -n 20 -- "$log" 2>/dev/null | sed 's/^/    /' >&2 || :
}

judge_event() {
    if [[ ! $FAILED_RANK ]] || ((FAILED_BY_REQUEST)); then return 0; fi
    event_write first_failure rank "$FAILED_RANK" node "$(json_string "$FAILED_NODE")" \
        code "$FAILED_CODE" signal "$(json_or_null "$(signal_of_code "$FAILED_CODE")")"
}
