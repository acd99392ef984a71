# shellcheck shell=bash
# The step: all ranks of one attempt. Builds its command, starts it, waits, ends it.

declare -a STEP_PIDS=() STEP_COMMAND=() STEP_GUARD=()
readonly STEP_CREATION_S=120 # how long Slurm may take to start a step once more
readonly STEP_STARTING_S=30  # how long a request for a checkpoint waits for ranks that are starting
STEP_CODE=0 STEP_MOUNTS='' STEP_FORWARDED='' STEP_CHDIR=()

# step_build ARGUMENTS...: STEP_COMMAND for srun; in place the launcher is started once per rank.
# Every attempt builds it anew, for the nodes that are left.
step_build() {
    local launcher=$JOBS_DIR/launcher.sh IFS=, # which joins NODES
    STEP_COMMAND=()
    if [[ $PLACE == *-srun || $PLACE == host-image ]]; then
        # --wait=0: no site's WaitTime ends those that still write their checkpoint.
        STEP_COMMAND=(srun --kill-on-bad-exit=1 --wait=0 --nodes="$NUM_NODES" --ntasks="$NUM_TASKS"
            --export=ALL --input=none)
        if [[ ${SRUN_CPUS_PER_TASK-} ]]; then STEP_COMMAND+=(--cpus-per-task="$SRUN_CPUS_PER_TASK"); fi
        # Our ranks need no MPI; where it is a site's default, its library would have to be in the image.
        if ((! IS_OWN_COMMAND)); then STEP_COMMAND+=(--mpi=none); fi
        # A step that was killed may hold on to its share of the nodes for a while.
        if ((INTERACTIVE || RESTARTS)); then STEP_COMMAND+=(--overlap); fi
        # Nor may it wait for ever for a node that Slurm counts as busy or no longer as the job's.
        if ((RESTARTS)); then STEP_COMMAND+=(--immediate="$STEP_CREATION_S"); fi
        if ((NUM_NODES < NUM_NODES_ALLOCATED)); then
            STEP_COMMAND+=(--nodelist="${NODES[*]}")
            # GPUs that were asked for as a sum are more than these nodes have.
            if [[ ${SLURM_GPUS-} && ${SLURM_GPUS_ON_NODE-} =~ ^[1-9][0-9]*$ ]]; then
                STEP_COMMAND+=(--gpus="$((NUM_NODES * SLURM_GPUS_ON_NODE))")
            fi
        fi
    fi
    if [[ $PLACE == container-srun ]]; then STEP_COMMAND+=("${STEP_CHDIR[@]}"); fi
    if [[ $PLACE == host-image ]]; then
        launcher=/opt/ddp/jobs/launcher.sh # the image's own
        STEP_COMMAND+=(--container-image="$DDP_IMAGE" --container-mounts="$STEP_MOUNTS"
            --container-env="$STEP_FORWARDED"
            --container-workdir="${PYXIS_CONTAINER_WORKDIR:-$SUBMIT_DIR}") # else it would be the image's own
    fi
    STEP_COMMAND+=("$launcher" "$@")
}

step_mounts() {
    local mounts=$SUBMIT_DIR:$SUBMIT_DIR entry extra
    [[ $PLACE == host-image ]] || return 0
    check_mountable "$SUBMIT_DIR"
    check_mountable "$DDP_OUT"
    [[ $DDP_OUT == "$SUBMIT_DIR"/* ]] || mounts+=,$DDP_OUT:$DDP_OUT
    extra=$(extra_mounts) || exit
    while IFS= read -r entry; do
        # Pyxis would unpack the whole image before it says so.
        [[ $entry != [./]* || -e ${entry%%:*} ]] ||
            die "DDP_MOUNTS must name what is there, found no '${entry%%:*}' on $DDP_NODE: correct it, or unset it"
        mounts+=${entry:+,$entry}
    done <<<"$extra"
    printf '%s' "$mounts"
}

# step_names: the variables that win over the image's. What is named to srun replaces the list of the
# user's own, so that one comes along.
step_names() {
    { tr , '\n' <<<"${PYXIS_CONTAINER_ENV-}" && forwarded_names; } | sed '/^$/d' | sort -u | paste -sd,
}

# A nested srun inherits the image from Pyxis's own variables; so it does the names that win over it.
step_forward_in_container() {
    local -n option=SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_env
    [[ $PLACE == container-srun ]] || return 0
    option=${option:+$option,}$STEP_FORWARDED
    export "${!option}"
}

# step_change_directory: a nested srun inherits ./ddp.sqsh and ./:/submit, too, which are relative to the
# job's directory on the host; this shell may be in the image's own, which no host has.
step_change_directory() {
    local directory
    [[ $PLACE == container-srun ]] || return 0
    directory=$(job_path WorkDir "$JOB_INFO")
    if [[ $directory && $directory != "$PWD" ]]; then STEP_CHDIR=(--chdir="$directory"); fi
}

# step_prepare: what needs substitutions, before there are traps.
step_prepare() {
    # When a batch script is killed, Slurm itself ends the step, with SIGTERM first, so that the ranks
    # can say how they ended; an srun that dies with the script would have it killed at once. So would one
    # that gets the SIGTERM of scancel --full, which goes to the script's process group.
    if [[ $PLACE == *-local ]] || ((INTERACTIVE)); then
        mapfile -t STEP_GUARD < <(with_parent TERM)
    else
        STEP_GUARD=(setsid)
    fi
    step_show_all_gpus
    STEP_MOUNTS=$(step_mounts)
    step_change_directory
    STEP_FORWARDED=$(step_names)
    step_forward_in_container
}

# step_show_all_gpus: with --gpus-per-task or --ntasks-per-gpu Slurm shows each rank one GPU. NCCL then has
# no short way to the others, and the one monitor of a node sees no other. Who asked for a binding keeps
# it, and so does a command of one's own, which may count on it.
step_show_all_gpus() {
    if ((IS_OWN_COMMAND)) || [[ ${SLURM_GPU_BIND-} ]]; then return 0; fi
    unset SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU
    if [[ ${SLURM_TRES_PER_TASK-} == *gpu* ]]; then unset SLURM_TRES_PER_TASK; fi
    if [[ ${SLURM_TRES_BIND-} == gres/gpu:@(per_task|single):* ]]; then unset SLURM_TRES_BIND; fi
}

step_start() {
    local local_rank
    inherited_give_back
    if [[ $PLACE != *-local ]]; then
        "${STEP_GUARD[@]}" env "${GIVEN_BACK[@]}" "${STEP_COMMAND[@]}" </dev/null &
        STEP_PIDS=("$!")
        return 0
    fi
    # Pyxis and Slurm describe the batch script's own task: not these ranks.
    unset SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS RANK LOCAL_RANK
    for ((local_rank = 0; local_rank < NUM_LOCAL_RANKS; local_rank++)); do
        env "${GIVEN_BACK[@]}" RANK="$local_rank" LOCAL_RANK="$local_rank" WORLD_SIZE="$WORLD_SIZE" \
            LOCAL_WORLD_SIZE="$WORLD_SIZE" NODE_RANK=0 \
            "${STEP_GUARD[@]}" "${STEP_COMMAND[@]}" </dev/null &
        STEP_PIDS+=("$!")
    done
}

# step_wait: returns when every process of the step has ended; STEP_CODE is the first bad code. In
# place it is what srun --kill-on-bad-exit is under Slurm: the first failure ends the others. No array
# is assigned in the loop: bash parses its words, and announces killed children where it parses.
step_wait() {
    local running=("${STEP_PIDS[@]}") index code
    while :; do
        for index in "${!running[@]}"; do
            if process_alive "${running[index]}"; then continue; fi
            code=0
            await "${running[index]}" || code=$?
            ((STEP_CODE)) || STEP_CODE=$code
            unset "running[$index]"
        done
        ((${#running[@]})) || return 0
        if ((STEP_CODE)) && [[ $PLACE == *-local ]]; then stop_processes 8 "${running[@]}"; fi
        pause 0.1
    done
}

# step_stop NAME: asks the ranks for a checkpoint (USR1), or ends them (any other signal).
step_stop() {
    ((${#STEP_PIDS[@]})) || return 0
    if [[ $1 != USR1 && $PLACE == *-local ]]; then
        step_signal TERM
        return 0
    fi
    (
        trap '' INT TERM HUP USR1
        trap - EXIT
        if [[ $1 != USR1 ]]; then
            step_end_ranks || step_signal TERM
        elif step_wait_for_ranks; then
            step_signal USR1
        fi
    ) </dev/null &
    disown "$!" 2>/dev/null || :
}

# An srun that gets SIGTERM has its tasks killed at once, and what they trained since the last checkpoint
# is lost: Slurm tells them first. Fails where it cannot, or they do not end.
step_end_ranks() {
    local id deadline
    # First of all a read of its own: forked while its parent was in one with a timeout, bash would let
    # that one end in the middle of a substitution here, and go on with the parent's work.
    step_is_alive || return 0
    id=$(grep -as "\"event\": \"rank_up\".*\"attempt\": $DDP_ATTEMPT," "$DDP_RUN_DIR/events.jsonl" |
        sed -n 's/.*"step_id": \([0-9]\{1,\}\).*/\1/p' | tail -n 1)
    if [[ ! $id ]] || ! timeout -k 1 10 scancel --signal=TERM "$SLURM_JOB_ID.$id" 2>/dev/null; then return 1; fi
    deadline=$((SECONDS + DDP_GRACE + 5)) # their launchers kill what has not ended after the grace
    while step_is_alive; do
        if ((SECONDS >= deadline)); then return 1; fi
        pause 0.2
    done
}

# SIGUSR1 ends a launcher that has no trap for it yet. What is still starting has nothing to save,
# and can wait. Fails if the step has ended meanwhile.
step_wait_for_ranks() {
    local deadline=$((SECONDS + STEP_STARTING_S)) num_up
    while step_is_alive; do
        num_up=$(step_ranks_up)
        if ((SECONDS >= deadline || ${num_up:-0} >= WORLD_SIZE)); then return 0; fi
        pause 0.2
    done
    return 1
}

step_is_alive() {
    local pid
    for pid in "${STEP_PIDS[@]}"; do
        if process_alive "$pid"; then return 0; fi
    done
    return 1
}

# Nothing where the events cannot be read, as on a full disk.
step_ranks_up() {
    grep -acs "\"event\": \"rank_up\".*\"attempt\": $DDP_ATTEMPT," "$DDP_RUN_DIR/events.jsonl" || :
}

# step_signal NAME: srun hands it to every rank's launcher; in place we do.
step_signal() {
    local pid
    for pid in "${STEP_PIDS[@]}"; do
        kill -s "$1" "$pid" 2>/dev/null || :
    done
}

# step_end: whatever happened, nothing of this attempt stays behind on this node.
step_end() {
    local leftovers=()
    stop_processes 5 "${STEP_PIDS[@]}"
    mapfile -t leftovers < <(processes_with "DDP_LAUNCH_ID=$DDP_LAUNCH_ID")
    stop_processes 2 "${leftovers[@]}"
    rm -rf -- {/dev/shm,"${TMPDIR:-/tmp}"}/ddp."$DDP_LAUNCH_ID".* # of launchers that were killed
}
