# shellcheck shell=bash disable=SC2034,SC2153 # set here, read by the other parts
# What follows the end of an attempt. Compares codes and counters; does nothing itself.

readonly DECIDE_BELIEVED_S=60 # a command that asks to go on later earlier than that has done nothing

# decide: from how the attempt ended, sets CODE, DECISION, REASON, RESTARTS, IDLE, DELAY_S and
# LAST_WORDS, the line that tells a person.
#
#   finish     all ranks finished
#   restart    the ranks start again in this allocation
#   requeue    the job goes back to Slurm's queue
#   successor  a job like this one is submitted, because this one may not be requeued
#   fail       nothing is done
decide() {
    DELAY_S=0 FATE=unknown EXCLUDE=$LOST_NODES${LOST:+${LOST_NODES:+ }$LOST}
    decide_go_on
    CODE=$(judge_code)
    if ((CODE == 0)); then
        decide_as finish ''
    elif ((CODE == EXIT_USAGE && NUM_NODES < NUM_NODES_WANTED)); then
        decide_requeue # fewer ranks than this run can have, not the user's mistake
    elif ((CODE == EXIT_USAGE)); then
        decide_as fail 'the input or the environment is wrong: not tried again'
    elif decide_is_persons_wish; then
        decide_as fail "$GO_ON"
    elif [[ $STOP_SIGNAL ]] || ((CODE == EXIT_STOPPED)); then
        decide_requeue
    elif [[ $LOST ]] && ! nodes_can_do_without "$EXCLUDE"; then
        decide_requeue
    else
        decide_restart
    fi
}

# decide_go_on: sets GO_ON, what a person can do.
decide_go_on() {
    GO_ON="to go on: start again with DDP_RUN_NAME=${DDP_RUN_DIR##*/}"
}

# decide_no_start NUMBER: as many starts ended and nobody was left to decide what follows.
decide_no_start() {
    decide_go_on
    CODE=$EXIT_FAILED DECISION=fail
    LAST_WORDS="no start: Slurm has requeued the job, and $1 starts in a row ended with their script or node before a new checkpoint (python -m monitor why $DDP_RUN_DIR); $GO_ON"
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

# decide_requeue: the allocation ends, the run does not.
decide_requeue() {
    local info=''
    if ((UNDER_SLURM && HAVE_CLIENT && ! INTERACTIVE)); then info=$(job_info || :); fi
    if [[ $info ]]; then FATE=$(requeue_fate "$info"); fi
    if [[ $FATE == requeued ]]; then
        decide_count_idle "$LATEST_AT_JOB_START"
        decide_as requeue "Slurm has requeued job $DDP_JOB_ID, which will go on $(decide_from)"
    elif ((! UNDER_SLURM || INTERACTIVE || ! HAVE_CLIENT)); then
        decide_as fail "$GO_ON"
    elif ((! DDP_REQUEUE)); then
        decide_as fail "no requeue: DDP_REQUEUE=0; $GO_ON"
    elif [[ $FATE == cancelled ]]; then
        decide_as fail "no requeue: the job was cancelled; $GO_ON"
    elif [[ $FATE == unknown ]]; then
        decide_as fail "no requeue: Slurm does not answer; $GO_ON"
    elif ((CODE != EXIT_STOPPED && DDP_MAX_RESTARTS == 0)) && [[ ! $LOST ]]; then
        decide_as fail "no requeue: it did not end with code $EXIT_STOPPED, a checkpoint written; $GO_ON"
    else
        decide_requeue_counted "$info"
    fi
}

# decide_requeue_counted INFO
decide_requeue_counted() {
    # What could not begin on fewer nodes was no start.
    if ((CODE != EXIT_USAGE)); then decide_count_idle "$LATEST_AT_JOB_START"; fi
    if ((IDLE > DDP_MAX_IDLE_RESTARTS)); then
        decide_as fail "no requeue: $(decide_idle_words); $GO_ON"
    elif [[ $(job_field Requeue "$1") == 0 ]]; then
        decide_as successor "a successor of job $DDP_JOB_ID goes on $(decide_from)"
    else
        decide_as requeue "job $DDP_JOB_ID is requeued and will go on $(decide_from)"
    fi
}

decide_restart() {
    local left
    decide_count_idle "$LATEST_AT_START"
    if [[ $LATEST != "$LATEST_AT_START" ]]; then RESTARTS=0; fi # a run that gets on may go on for weeks
    if ((DDP_MAX_RESTARTS == 0)); then
        decide_give_up 'DDP_MAX_RESTARTS=0'
    elif ((RESTARTS >= DDP_MAX_RESTARTS)); then
        decide_give_up "all $DDP_MAX_RESTARTS of DDP_MAX_RESTARTS are used without a new checkpoint"
    elif ((IDLE > DDP_MAX_IDLE_RESTARTS)); then
        decide_give_up "$(decide_idle_words)"
    else
        RESTARTS=$((RESTARTS + 1))
        DELAY_S=$((IDLE < 5 ? 1 << IDLE : 30)) # longer only where the last one brought nothing
        left=$(counted "$(nodes_left "$EXCLUDE")" node)
        decide_as restart "restart $RESTARTS of $DDP_MAX_RESTARTS ${LOST:+on $left }$(decide_from) in $DELAY_S s"
    fi
}

# decide_give_up REASON: the failure is a person's to mend.
decide_give_up() {
    decide_as fail "no restart: $1"
    LAST_WORDS+="; mend what fails; $GO_ON"
}

# decide_count_idle LATEST_BEFORE: a start that brought no new checkpoint would end in the same place
# for ever.
decide_count_idle() {
    if [[ $LATEST != "$1" ]] || decide_is_believed; then IDLE=0; else IDLE=$((IDLE + 1)); fi
}

# A command of the user's own that keeps no checkpoints/latest is believed its code 75, unless nobody
# asked it to stop and it had hardly begun.
decide_is_believed() {
    [[ $FAILED_RANK && ! $LATEST ]] && ((CODE == EXIT_STOPPED && IS_OWN_COMMAND)) || return 1
    [[ $STOP_SIGNAL ]] || ((SECONDS - ATTEMPT_BEGAN >= DECIDE_BELIEVED_S))
}

decide_idle_words() {
    local missed='no new checkpoint' remedy=''
    if ((IS_OWN_COMMAND)); then
        missed+=" by the word of $DDP_RUN_DIR/checkpoints/latest"
        remedy='; a command that writes none there needs a higher DDP_MAX_IDLE_RESTARTS'
    fi
    if ((IDLE == 1)); then
        echo "this start brought $missed (DDP_MAX_IDLE_RESTARTS=0)$remedy"
    else
        echo "$IDLE starts in a row brought $missed$remedy"
    fi
}

# decide_from: a command of the user's own may keep checkpoints that nobody here knows of.
decide_from() {
    if [[ $LATEST ]]; then
        echo "from step ${LATEST#step-}"
    elif ((IS_OWN_COMMAND)); then
        echo 'where the command itself carries on'
    else
        echo 'from the beginning'
    fi
}
