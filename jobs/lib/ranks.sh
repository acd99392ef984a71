# shellcheck shell=bash disable=SC2034 # set here, read by launcher.sh
# The rank contract: the only file that knows SLURM_PROCID and friends.

# contract NAME VALUE: sets what is unset; what is set must agree.
contract() {
    if [[ ${!1-} && ${!1} != "$2" ]]; then
        die "$1 must agree with the launcher's own, found $1=${!1} and expected $2: unset it"
    fi
    export "$1=$2"
}

# ranks_resolve: from Slurm's task, from torchrun or prelaunch.sh, or for a single process.
ranks_resolve() {
    if [[ ${SLURM_PROCID-} && ${SLURM_STEP_ID-} ]]; then
        ranks_from_slurm
    elif [[ ${RANK-} ]]; then
        ranks_from_contract
    else
        ranks_single
    fi
    ranks_check
}

ranks_from_slurm() {
    DDP_NODE=$SLURMD_NODENAME
    NUM_LOCAL_TASKS=$(tasks_of_node "${SLURM_STEP_TASKS_PER_NODE:-$SLURM_TASKS_PER_NODE}" "$SLURM_NODEID")
    if ((NUM_LOCAL_TASKS == 1 && ${DDP_NPROC_PER_NODE:-1} > 1)); then
        # One task a node: torchrun numbers the ranks; Pyxis numbered the task.
        IS_NODE_TASK=1
        unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
        NUM_NODES=${SLURM_STEP_NUM_NODES:-$SLURM_NNODES}
        export NODE_RANK=$SLURM_NODEID
        return 0
    fi
    contract RANK "$SLURM_PROCID"
    contract LOCAL_RANK "$SLURM_LOCALID"
    contract WORLD_SIZE "${SLURM_STEP_NUM_TASKS:-$SLURM_NTASKS}"
    contract LOCAL_WORLD_SIZE "$NUM_LOCAL_TASKS"
    contract NODE_RANK "$SLURM_NODEID"
}

ranks_from_contract() {
    local name
    export NODE_RANK=${NODE_RANK:-${GROUP_RANK:-0}} # torchrun's name for it
    for name in LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT; do
        [[ ${!name-} ]] ||
            die "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT go together, found RANK=$RANK without $name: set all, or none"
    done
}

ranks_single() {
    contract RANK 0
    contract LOCAL_RANK 0
    contract WORLD_SIZE 1
    contract LOCAL_WORLD_SIZE 1
    contract NODE_RANK 0
    if [[ ! ${MASTER_PORT-} ]]; then
        read -r _ MASTER_PORT < <(bash "$JOBS_DIR/lib/probe.sh" "$$" '' '')
    fi
    export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT
}

ranks_check() {
    if ((IS_NODE_TASK)); then return 0; fi
    require_integer WORLD_SIZE "$WORLD_SIZE" 1 999999999
    require_integer RANK "$RANK" 0 $((WORLD_SIZE - 1))
    require_integer LOCAL_WORLD_SIZE "$LOCAL_WORLD_SIZE" 1 "$WORLD_SIZE"
    require_integer LOCAL_RANK "$LOCAL_RANK" 0 $((LOCAL_WORLD_SIZE - 1))
    require_integer MASTER_PORT "${MASTER_PORT-}" 1 65535
}

# tasks_of_node LIST INDEX: SLURM_STEP_TASKS_PER_NODE such as 2(x3),1 gives the tasks of one node.
tasks_of_node() {
    local group count index=$2 groups
    IFS=, read -ra groups <<<"$1"
    for group in "${groups[@]}"; do
        count=1
        if [[ $group == *'(x'* ]]; then
            count=${group#*(x}
            count=${count%)}
        fi
        if ((index < count)); then
            echo "${group%%(*}"
            return 0
        fi
        index=$((index - count))
    done
    die "SLURM_STEP_TASKS_PER_NODE must cover node $2, found '$1': is the step's environment complete?"
}
