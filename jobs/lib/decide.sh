# shellcheck shell=bash disable=SC2034,SC2153 # set here, read by the other parts
# What follows the end of an attempt. Compares codes and counters; does nothing itself.

# decide: from how the attempt ended, sets CODE, DECISION, REASON, RESTARTS, IDLE, DELAY_S and
# LAST_WORDS, the line that tells a person.
#
#   finish     all ranks finished
#   restart    the ranks start again in this allocation
#   requeue    the job goes back to Slurm's queue, or a successor is submitted
#   fail       nothing is done
decide() {
    DELAY_S=0
    CODE=$(judge_code)
    if ((CODE == 0)); then
        decide_as finish ''
    elif ((CODE == EXIT_USAGE)); then
        decide_as fail 'the input or the environment is wrong: not tried again'
    elif decide_is_persons_wish; then
        decide_as fail "to go on: start again with DDP_RUN_NAME=${DDP_RUN_DIR##*/}"
    elif [[ $STOP_SIGNAL ]] || ((CODE == EXIT_STOPPED)); then
        decide_requeue
    else
        decide_restart
    fi
}

# decide_as DECISION REASON
decide_as() {
    DECISION=$1 REASON=$2
    LAST_WORDS=$(judge_words)${REASON:+; $REASON}
}

# A person who ends a job wants it to end.
decide_is_persons_wish() {
    [[ $STOP_SIGNAL == INT ]] || { [[ $STOP_SIGNAL ]] && ((! UNDER_SLURM)); }
}

decide_requeue() {
    decide_as fail "to go on: start again with DDP_RUN_NAME=${DDP_RUN_DIR##*/}"
}

decide_restart() {
    decide_count_idle
    if ((DDP_MAX_RESTARTS == 0)); then
        decide_as fail 'no restart: DDP_MAX_RESTARTS=0'
    elif ((RESTARTS >= DDP_MAX_RESTARTS)); then
        decide_as fail "no restart: all $DDP_MAX_RESTARTS of DDP_MAX_RESTARTS are used"
    elif ((IDLE > DDP_MAX_IDLE_RESTARTS)); then
        decide_as fail "no restart: $(decide_idle_words)"
    else
        RESTARTS=$((RESTARTS + 1))
        DELAY_S=$((RESTARTS < 5 ? 1 << RESTARTS : 30))
        decide_as restart "restart $RESTARTS of $DDP_MAX_RESTARTS $(decide_from) in $DELAY_S s"
    fi
}

# A start that brought no new checkpoint would end in the same place for ever.
decide_count_idle() {
    if [[ $LATEST && $LATEST != "$LATEST_AT_START" ]]; then IDLE=0; else IDLE=$((IDLE + 1)); fi
}

decide_idle_words() {
    if ((IDLE == 1)); then
        echo 'this start brought no new checkpoint (DDP_MAX_IDLE_RESTARTS=0)'
    else
        echo "$IDLE starts in a row brought no new checkpoint"
    fi
}

decide_from() {
    if [[ $LATEST ]]; then echo "from step ${LATEST#step-}"; else echo 'from the beginning'; fi
}
