# shellcheck shell=bash disable=SC2034,SC2153 # set here, read by the other parts
# The nodes of the allocation: which one is lost, and what the others carry.

# nodes_lost NODE: does it answer neither Slurm nor us? Sets HOW. Where the controller does not answer
# either, it may be this machine that lost its network: then nobody is said to be lost.
nodes_lost() {
    local info state address port try
    HOW=''
    [[ $PLACE != *-local && $1 != "$DDP_NODE" ]] || return 1
    info=$(nodes_info "$1") || return 1
    state=$(job_field State "$info")
    address=$(job_field NodeAddr "$info") port=$(job_field Port "$info")
    if [[ ${port:-0} == 0 ]]; then port=$(nodes_slurmd_port); fi
    for try in 1 2; do
        # slurmd's port answers at once where srun could start something.
        # shellcheck disable=SC2016 # expanded by the inner bash
        if timeout -k 1 3 bash -c '</dev/tcp/"$1"/"$2"' _ "${address:-$1}" "$port" 2>/dev/null; then return 1; fi
        if ((try == 1)); then pause 1; fi
    done
    HOW="it does not answer on port $port; Slurm's state of it is ${state:-unknown}"
}

# nodes_info NODE: what Slurm says of it, on one line.
nodes_info() {
    timeout -k 1 20 scontrol --oneliner show node "$1" 2>/dev/null
}

# nodes_rebooted NODE SINCE: has it been started anew since that time? Sets HOW.
nodes_rebooted() {
    local info started boot since
    info=$(nodes_info "$1") || return 1
    started=$(job_field BootTime "$info")
    [[ $started && $2 ]] || return 1 # to date nothing is midnight
    boot=$(date -d "$started" +%s 2>/dev/null) && since=$(date -d "$2" +%s 2>/dev/null) || return 1
    ((boot > since)) || return 1
    HOW="it was started anew at $started"
}

# nodes_dropped: the nodes of this attempt that the job no longer has, one a line. With --no-kill Slurm
# takes a node out of the job that it does not reach for a while, and leaves it out when it is back.
nodes_dropped() {
    local info kept node
    ((DDP_NO_KILL)) && [[ $PLACE != *-local ]] || return 0
    info=$(job_info) && kept=$(scontrol show hostnames "$(job_field NodeList "$info")" 2>/dev/null) || return 0
    [[ $kept ]] || return 0
    for node in "${NODES[@]}"; do
        grep -qxF -e "$node" <<<"$kept" || echo "$node"
    done
}

# With several ports configured (SlurmdPort=7000-7003) the first is as good.
nodes_slurmd_port() {
    local port
    port=$(timeout -k 1 20 scontrol show config 2>/dev/null | sed -n 's/^SlurmdPort *= *\([0-9]*\).*/\1/p')
    echo "${port:-6818}"
}

# nodes_left LOST: how many nodes the next attempt can have. LOST is a list with spaces between.
nodes_left() {
    local lost left
    read -ra lost <<<"$1"
    left=$((NUM_NODES_ALLOCATED - ${#lost[@]}))
    echo $((left < NUM_NODES_WANTED ? left : NUM_NODES_WANTED))
}

# nodes_can_do_without LOST: could the step run on the rest?
nodes_can_do_without() {
    ((DDP_NO_KILL && NUM_TASKS == NUM_NODES * NUM_LOCAL_TASKS && $(nodes_left "$1") > 0))
}

# nodes_do_without LOST: the next attempt's nodes and ranks: spare nodes first, else fewer.
nodes_do_without() {
    local node left=()
    for node in "${ALL_NODES[@]}"; do
        if [[ " $1 " != *" $node "* ]]; then left+=("$node"); fi
    done
    NODES=("${left[@]:0:NUM_NODES_WANTED}")
    NUM_NODES=${#NODES[@]}
    NUM_TASKS=$((NUM_NODES * NUM_LOCAL_TASKS))
    WORLD_SIZE=$((NUM_NODES * NUM_LOCAL_RANKS))
    DDP_NUM_NODES=$NUM_NODES
}
