# shellcheck shell=bash disable=SC2034 # set here, read by the other parts
# MASTER_ADDR and MASTER_PORT: where the ranks find each other.

# master_resolve: sets MASTER_ADDR and MASTER_PORT with their origins, for this attempt on NODES.
# What an attempt before chose is chosen anew; what the user set stays.
master_resolve() {
    local master address port name status=0
    for name in MASTER_ADDR MASTER_PORT; do
        if [[ ${SETTING_ORIGINS[$name]:-the environment} != 'the environment' ]]; then unset "$name"; fi
    done
    master=$(master_node)
    if [[ -v MASTER_PORT ]]; then require_integer MASTER_PORT "$MASTER_PORT" 1 65535; fi
    read -r address port < <(master_probe "$master") || :
    wait "$!" || status=$?
    case $status in
        0) ;;
        3) die "DDP_IFACE must name an interface with an address on $master, found none on '$DDP_IFACE': see 'ip -br addr' there" ;;
        4) die "MASTER_PORT must be free on $master, found ${MASTER_PORT:-every one} taken: unset it to have a free one chosen" ;;
        *) die "the port of rank 0 must be probed on $master, and the probe ended with code $status: is the node up (sinfo -N)?" ;;
    esac
    master_choose_address "$master" "$address"
    setting MASTER_PORT "by job id, free on $master" "$port"
}

# master_forget_hooks: in an image with PYTORCH_VERSION, as NVIDIA's are, Pyxis makes the batch script
# a rank, and Enroot's hook for it chooses a port that nobody has looked at.
master_forget_hooks() {
    unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK
    if [[ ${PYTORCH_VERSION-} && ${MASTER_PORT-} == $((${SLURM_JOB_ID:-0} % 4536 + 61000)) ]]; then
        unset MASTER_PORT
    fi
}

# master_list_nodes: ALL_NODES of the allocation, and the NODES of the first attempt.
master_list_nodes() {
    local listed=${SLURM_JOB_NODELIST:-${SLURM_NODELIST-}}
    ALL_NODES=("$DDP_NODE")
    if ((HAVE_CLIENT)); then
        mapfile -t ALL_NODES < <(scontrol show hostnames "$listed")
        ((${#ALL_NODES[@]})) || die "scontrol must tell the job's nodes, found none of '$listed': see its words above"
    fi
    NODES=("${ALL_NODES[@]:0:NUM_NODES}")
}

# The node of rank 0, in Slurm's own order; a host file of the user's has an order of its own.
master_node() {
    if [[ ${SLURM_DISTRIBUTION-} == arbitrary && -r ${SLURM_HOSTFILE-} ]]; then
        head -n 1 -- "$SLURM_HOSTFILE"
    else
        echo "${NODES[0]}"
    fi
}

# master_probe NODE: runs lib/probe.sh there, through standard input where that is another machine.
master_probe() {
    # Every attempt begins its search elsewhere: the port before may not be free again yet.
    # So does every one of several runs in one allocation.
    local number=$((${SLURM_JOB_ID:-$$} + (INTERACTIVE ? $$ : 0) + 1009 * (DDP_ATTEMPT - 1))) probe=$JOBS_DIR/lib/probe.sh
    local arguments=("$number" "${DDP_IFACE-}" "${MASTER_PORT-}")
    if [[ $1 == "$DDP_NODE" || $PLACE == *-local ]]; then
        bash "$probe" "${arguments[@]}"
    else
        master_srun "$1" bash -s -- "${arguments[@]}" <"$probe"
    fi
}

# master_srun NODE COMMAND...: a step of one task that asks for nothing: what the job's variables ask for
# is the ranks' own, and more than one node has. Between two attempts nobody waits so long for a node that
# may be gone.
master_srun() {
    local node=$1 name dropped=()
    shift
    for name in $(compgen -e | grep -E '^(SLURM|SRUN)_(GPUS?|NTASKS|CPUS?|TRES|MEM)_|^SLURM_(GPUS|NTASKS|STEP_GRES|LABELIO)$'); do
        dropped+=(-u "$name")
    done
    timeout -k 5 "$((RESTARTS ? 20 : 120))" env "${dropped[@]}" srun --overlap --mpi=none --gres=none --mem=0 \
        --nodes=1 --ntasks=1 --nodelist="$node" --export=ALL "$@"
}

# master_choose_address NODE INTERFACE_ADDRESS
master_choose_address() {
    if [[ -v MASTER_ADDR ]]; then
        [[ $MASTER_ADDR && $MASTER_ADDR != *[[:space:]]* ]] ||
            die "MASTER_ADDR must be a host's name or address, found '$MASTER_ADDR': correct it, or unset it for the node of rank 0"
        ((NUM_NODES == 1)) || ! is_loopback "$MASTER_ADDR" ||
            die "MASTER_ADDR must not be a loopback address with $NUM_NODES nodes, found '$MASTER_ADDR': unset it, or set DDP_IFACE"
        setting_note MASTER_ADDR 'the environment'
    elif [[ ${DDP_IFACE-} ]]; then
        ((NUM_NODES == 1)) || ! is_loopback "$2" ||
            die "DDP_IFACE must be an interface that other nodes reach, found '$DDP_IFACE' with $2 on $1: name the one of their network (ip -br addr)"
        setting MASTER_ADDR "DDP_IFACE on $1" "$2"
    elif [[ $PLACE == *-local ]]; then
        setting MASTER_ADDR 'one machine' 127.0.0.1
    elif master_name_is_good "$1"; then
        setting MASTER_ADDR "the node of rank 0" "$1"
    else
        master_fall_back "$1"
    fi
}

# A name is good if it means the same machine to every node: it resolves, and not to loopback.
master_name_is_good() {
    local address
    address=$(getent ahosts "$1" | awk 'NR == 1 { print $1 }')
    [[ $address ]] && ! is_loopback "$address"
}

master_fall_back() {
    local address
    address=$(scontrol --oneliner show node "$1" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
    if [[ $address ]] && master_name_is_good "$address"; then
        setting MASTER_ADDR "Slurm's NodeAddr of $1" "$address"
    elif ((NUM_NODES == 1)); then
        setting MASTER_ADDR 'one machine' 127.0.0.1
    else
        die "the name of rank 0's node must resolve to an address other nodes reach, found none for '$1': set DDP_IFACE to its network interface, or MASTER_ADDR"
    fi
}

is_loopback() {
    [[ $1 == 127.* || $1 == ::1 || $1 == localhost* || $1 == 0.0.0.0 ]]
}
