# shellcheck shell=bash disable=SC2034,SC2153 # set by the other parts, and for them
# The end of an attempt: the first failing rank and the job's own exit code, from events.jsonl.

# judge_failure: sets FAILED_RANK, FAILED_NODE and FAILED_CODE, empty if no rank failed;
# FAILED_BY_REQUEST if that rank only ended because it had been told to; FAILED_WHY, in words, where it
# is known; VERDICT, the watchdog's line, if it gave one; and LOST, the nodes that are gone.
#
# What is a cause comes before what follows from it: a verdict that names the network; a lost node,
# whose peers only wait; any other verdict; a rank that came up and never ended, because its launcher
# was killed, unless the guard ended it so; the first that failed without being told to stop; and last,
# one that was told to.
judge_failure() {
    local guard='' rank
    local -A up=() said=()
    local first='' stopped='' verdict=''
    FAILED_RANK='' FAILED_NODE='' FAILED_CODE=0 FAILED_BY_REQUEST=0 FAILED_WHY='' VERDICT='' LOST='' LOST_HOW=''
    { read -r guard <"$WORK_DIR/guard"; } 2>/dev/null || :
    judge_read
    judge_lost_nodes
    if [[ $verdict && (! $LOST || $verdict == *'"kind": "network"'*) ]]; then
        VERDICT=$(event_text text "$verdict")
        judge_blame "$verdict" "$EXIT_HUNG"
    elif [[ $LOST ]]; then
        FAILED_NODE=${LOST%% *} FAILED_CODE=137
        for rank in "${!up[@]}"; do
            if [[ ${up[$rank]} == "$FAILED_NODE" ]] && ((rank < ${FAILED_RANK:-999999999})); then FAILED_RANK=$rank; fi
        done
    elif ((${#up[@]} && STEP_CODE)) && [[ ! $guard || ! $first ]]; then # with 0 a line was lost, not a rank
        FAILED_RANK=$(printf '%s\n' "${!up[@]}" | sort -n | head -n 1)
        FAILED_NODE=${up[$FAILED_RANK]}
        FAILED_CODE=$((STEP_CODE > 128 ? STEP_CODE : 137))
    elif [[ $first$stopped ]]; then
        if [[ ! $first ]]; then FAILED_BY_REQUEST=1; fi
        judge_blame "${first:-$stopped}" ''
    fi
}

# judge_blame EVENT CODE: an empty code is the event's own.
judge_blame() {
    FAILED_RANK=$(event_field rank "$1")
    if [[ $FAILED_RANK == null ]]; then FAILED_RANK=''; fi # a verdict may name a node alone
    FAILED_NODE=$(event_field node "$1")
    FAILED_CODE=${2:-$(event_field code "$1")}
    if [[ $1 == *'"oom": true'* ]]; then
        FAILED_WHY=': out of memory, ask for more with --mem'
    elif ((FAILED_CODE == EXIT_FAILED)) && [[ $FAILED_RANK ]]; then
        FAILED_WHY=$(judge_said)
        FAILED_WHY=${FAILED_WHY:+: ${FAILED_WHY:0:JUDGE_MAX_WHY}}
    fi
}

# judge_said: what the failed rank told of its failure: by its event, or, before it had any, in its log.
judge_said() {
    if [[ ${said[$FAILED_RANK]-} ]]; then
        event_text error "${said[$FAILED_RANK]}"
    else
        tail -c 16384 -- "$DDP_RUN_DIR/logs/rank-$FAILED_RANK.log" 2>/dev/null | tail -n 20 |
            sed -n 's/^trainer: //p' | tail -n 1 || :
    fi
}

readonly JUDGE_MAX_WHY=300 # characters of a failure's own words

# Each of these words stands in FOLLOWS of monitor/runs/failure.py, too, which has more: it reads the line of
# the failure, and not all of a log's last ones.
LOST_PEER='Connection (closed|reset) by (remote )?peer|remote process exited|ncclRemoteError'

# judge_read: fills up, said, first, stopped, verdict and LOST of judge_failure. A rank that loses a peer
# often ends before that peer's own launcher can tell: its words say that it only follows. Our trainer's 70
# may be either, where it could not say: any other code is the cause, not that one. What is not finite ends
# all ranks with 70 at once, and only the event tells whose it was.
judge_read() {
    local line rank code failed='' follows='' culprit=none
    local -A lost_peer=()
    while IFS= read -r line; do
        rank=$(event_field rank "$line")
        case $line in
            *'"event": "rank_up"'*) up[$rank]=$(event_field node "$line") ;;
            *'"event": "verdict"'*) verdict=${verdict:-$line} ;;
            *'"event": "failure"'*)
                said[$rank]=$line
                if [[ $line =~ $LOST_PEER ]]; then lost_peer[$rank]=1; fi
                ;;
            *'"event": "non_finite"'*) if [[ $line =~ '"ranks": ['([0-9]+) ]]; then culprit=${BASH_REMATCH[1]}; fi ;;
            *'"event": "lost_node"'*) judge_lost "$(event_field node "$line")" "$(event_text how "$line")" ;;
            *)
                unset "up[$rank]"
                code=$(event_field code "$line")
                ((code)) || continue
                if [[ $line == *'"requested": true'* ]]; then
                    stopped=${stopped:-$line}
                elif [[ $first ]]; then
                    continue
                elif judge_only_follows "$rank" "$code"; then
                    follows=${follows:-$line}
                elif ((code == EXIT_FAILED)); then
                    if [[ ! $failed || $rank == "$culprit" ]]; then failed=$line; fi
                else
                    first=$line
                fi
                ;;
        esac
    done < <(grep -aE "\"event\": \"(rank_up|rank_end|failure|non_finite|verdict|lost_node)\".*\"attempt\": $DDP_ATTEMPT," "$DDP_RUN_DIR/events.jsonl" || :)
    first=${first:-${failed:-$follows}}
}

# judge_only_follows RANK CODE: has it said that a peer went away? Our trainer tells its failure, any other
# program ends its log so; whom a signal killed said nothing of it.
judge_only_follows() {
    if (($2 == EXIT_FAILED)); then
        [[ ${lost_peer[$1]-} ]]
    else
        (($2 < 128)) && tail -n 5 -- "$DDP_RUN_DIR/logs/rank-$1.log" 2>/dev/null | grep -E "$LOST_PEER" >/dev/null
    fi
}

# judge_lost NODE HOW
judge_lost() {
    LOST+=${LOST:+ }$1
    LOST_HOW=${LOST_HOW:-$2}
}

# judge_lost_nodes: a node is asked if ranks of it never ended, or if the watchdog does not reach it;
# and what Slurm has taken out of the job is lost although it may answer again.
judge_lost_nodes() {
    local node asked=' '
    for node in "${up[@]}" "$(if [[ $verdict == *'"kind": "network"'* ]]; then event_field node "$verdict"; fi)"; do
        if [[ ! $node || "$asked$LOST " == *" $node "* ]]; then continue; fi
        asked+="$node "
        if nodes_lost "$node"; then judge_tell_lost "$node"; fi
    done
    if ((STEP_CODE == 0)); then return 0; fi
    HOW='Slurm has taken it out of the job'
    while IFS= read -r node; do
        if [[ " $LOST " != *" $node "* ]]; then judge_tell_lost "$node"; fi
    done < <(nodes_dropped)
}

# judge_tell_lost NODE: HOW says how it was lost.
judge_tell_lost() {
    event_write lost_node node "$(json_string "$1")" how "$(json_string "$HOW")"
    judge_lost "$1" "$HOW"
}

# judge_code: the first failing rank's code, else what the step itself ended with.
judge_code() {
    if [[ $FAILED_RANK || $FAILED_NODE ]]; then
        echo "$FAILED_CODE"
    elif judge_is_foreign_image; then
        echo "$EXIT_USAGE"
    elif [[ $STOP_SIGNAL ]] && ((STEP_CODE > 128)); then
        echo "$EXIT_STOPPED" # the signal ended launchers that had no rank yet: nothing is lost
    else
        echo "$STEP_CODE"
    fi
}

# With code 2 Slurm says that the program is not there: the launcher, in an image that is not ours.
judge_is_foreign_image() {
    [[ $PLACE == host-image && ! $FAILED_RANK ]] && ((STEP_CODE == 2))
}

# judge_words: what happened, in the words of the job's last line.
judge_words() {
    local log=$DDP_RUN_DIR/logs/rank-$FAILED_RANK.log all=''
    if ((CODE == 0)); then
        if ((WORLD_SIZE > 1)); then all='all '; fi
        echo "$all$(counted "$WORLD_SIZE" rank) finished; $DDP_RUN_DIR"
    elif ((CODE == EXIT_STOPPED && IS_OWN_COMMAND)) && [[ $FAILED_RANK && ! $STOP_SIGNAL ]]; then
        echo "rank $FAILED_RANK on $FAILED_NODE asks by code $CODE to go on later; $(judge_checkpoint)"
    elif ((CODE == EXIT_STOPPED)) && [[ $FAILED_RANK ]]; then
        echo "stopped on request${STOP_SIGNAL:+ (SIG$STOP_SIGNAL)}, code $CODE; $(judge_checkpoint)"
    elif ((CODE == EXIT_STOPPED)); then
        echo "stopped on request${STOP_SIGNAL:+ (SIG$STOP_SIGNAL)} before the ranks were started (code $CODE)"
    elif [[ $VERDICT ]]; then
        echo "$VERDICT"
    elif [[ $LOST ]]; then
        echo "node $FAILED_NODE is lost with ${FAILED_RANK:+rank $FAILED_RANK and }all of its ranks, code $CODE: $LOST_HOW"
    elif judge_is_foreign_image; then
        echo "DDP_IMAGE must be an image of this project's Dockerfile, found no /opt/ddp/jobs/launcher.sh in $DDP_IMAGE: name it with sbatch --container-image instead (docs/image.md), or build upon it with --build-arg BASE_IMAGE"
    elif [[ ! $FAILED_RANK ]]; then
        echo "the ranks could not be started: the step $(describe_code "$CODE"), see the lines above"
    elif [[ $STOP_SIGNAL ]] && ((FAILED_BY_REQUEST)); then
        echo "stopped on request (SIG$STOP_SIGNAL); rank $FAILED_RANK on $FAILED_NODE $(describe_code "$CODE"); its log: $log"
    else
        echo "rank $FAILED_RANK on $FAILED_NODE $(describe_code "$CODE")$FAILED_WHY; its log: $log"
    fi
}

judge_checkpoint() {
    if [[ $LATEST ]]; then
        echo "the newest checkpoint is $LATEST"
    elif ((IS_OWN_COMMAND)); then
        echo 'by this code the command says that it wrote a checkpoint'
    else
        echo 'there is no checkpoint yet'
    fi
}

# judge_show_log: the last lines of the failed rank's log, before the line that names it, which is one of
# its own; lines may be as long as a progress bar that never ends one.
judge_show_log() {
    local log=$DDP_RUN_DIR/logs/rank-$FAILED_RANK.log
    if [[ ! $FAILED_RANK || $LOST ]] || ((CODE == EXIT_STOPPED || FAILED_BY_REQUEST)); then return 0; fi
    log_info "the end of $log:"
    tail -c 16384 -- "$log" 2>/dev/null | tail -n 20 |
        sed -e 's/^/    /' -e "\$a\\" >&2 || : # the second one ends a last line that has no end
}

judge_event() {
    if [[ ! $FAILED_RANK ]] || ((FAILED_BY_REQUEST)); then return 0; fi
    event_write first_failure rank "$FAILED_RANK" node "$(json_string "$FAILED_NODE")" \
        code "$FAILED_CODE" signal "$(json_or_null "$(signal_of_code "$FAILED_CODE")")"
}
