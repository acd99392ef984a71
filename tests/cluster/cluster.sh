#!/usr/bin/env bash
# A Slurm cluster on one machine: real slurmctld, slurmd and munged; every node has its own
# network, address and host name, and GPUs to allocate: further names of /dev/null, or real ones.
set -Eeuo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
# shellcheck source=tests/cluster/lib.sh
source "$here/lib.sh"
# shellcheck source=tests/cluster/network.sh
source "$here/network.sh"
# shellcheck source=tests/cluster/slurm.sh
source "$here/slurm.sh"

usage() {
    cat <<'END'
usage: cluster.sh COMMAND
  up [NODES]         start the cluster (2 nodes), mend it, or change its number of nodes
  down               stop it; nothing is left behind
  status             show the nodes; exit 0 if the cluster is up, 3 if it is not
  env                print the export lines that make Slurm's commands use it
  exec NODE COMMAND  run a command in a node
  cut NODE           pull the node's network cable
  heal NODE          plug it in again; after kill, switch the node on
  kill NODE          pull the node's power: everything on it dies at once
environment:
  DDP_CLUSTER_CPUS, DDP_CLUSTER_GPUS   CPUs (8) and GPUs (2) of each node
  DDP_CLUSTER_GPU_FILES=/dev/nvidia0,/dev/nvidia1,…
                                       real GPUs, spread over the nodes
  DDP_CLUSTER_PREEMPT=1                a partition that preempts (urgent) and one whose jobs
                                       are cancelled by it, not requeued (spot)
  DDP_CLUSTER_EXTRA                    a file with further lines for slurm.conf
  DDP_CLUSTER_DIR, _PREFIX, _SUBNET    /var/lib/ddp-cluster, node, 10.213.77: all three
                                       different for a second cluster on the machine
END
}

require_machine() {
    [[ $(uname -s) == Linux ]] || die "the cluster needs Linux" "$(uname -s)" "use a Linux machine"
    ((EUID == 0)) || die "the cluster needs root for network namespaces" "user $EUID" "run it with sudo"
    local program
    for program in slurmctld slurmd munged sinfo ip nsenter unshare flock; do
        command -v "$program" >/dev/null ||
            die "the cluster needs $program" "none on PATH" "run tests/provision.sh --install-only"
    done
}

require_settings() {
    [[ $CLUSTER_DIR =~ ^/[A-Za-z0-9._/-]+$ ]] ||
        die "DDP_CLUSTER_DIR must hold only letters, digits and ._/-, as slurm.conf takes no others" "$CLUSTER_DIR" "choose another directory"
    [[ $CLUSTER_PREFIX =~ ^[a-z]{1,6}$ ]] || # an interface name has 15 characters at most
        die "DDP_CLUSTER_PREFIX must be one to six small letters" "$CLUSTER_PREFIX" "for example node"
    [[ $CLUSTER_SUBNET =~ ^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$ ]] ||
        die "DDP_CLUSTER_SUBNET must be the first three numbers of a /24" "$CLUSTER_SUBNET" "for example 10.213.77"
    [[ $CLUSTER_CPUS =~ ^[1-9][0-9]{0,2}$ && $CLUSTER_GPUS =~ ^[0-9]{1,2}$ ]] ||
        die "DDP_CLUSTER_CPUS and _GPUS must be small whole numbers" "$CLUSTER_CPUS, $CLUSTER_GPUS" "unset them for 8 and 2"
    [[ $CLUSTER_PREEMPT == [01] ]] ||
        die "DDP_CLUSTER_PREEMPT must be 0 or 1" "$CLUSTER_PREEMPT" "unset it for 0"
    [[ -z $CLUSTER_EXTRA || -r $CLUSTER_EXTRA ]] ||
        die "DDP_CLUSTER_EXTRA must be a file that can be read" "$CLUSTER_EXTRA" "correct it, or unset it"
    local owner
    owner=$(bridge_owner)
    [[ -z $owner || $owner == "$CLUSTER_DIR" ]] ||
        die "nodes named $CLUSTER_PREFIX… must be of one cluster a machine" "another one in $owner" "end it with DDP_CLUSTER_DIR=$owner and down, or choose another DDP_CLUSTER_PREFIX and _SUBNET"
}

require_gpus() {
    local file all=" ${CLUSTER_GPU_FILES[*]} "
    for file in "${CLUSTER_GPU_FILES[@]}"; do
        [[ -c $file && $file =~ ^/([A-Za-z0-9._-]+/)*nvidia[0-9]+$ ]] ||
            die "DDP_CLUSTER_GPU_FILES must name the machine's GPUs, with commas between" "no device '$file'" "for example /dev/nvidia0,/dev/nvidia1"
        all=${all/" $file "/ }
        [[ $all != *" $file "* ]] ||
            die "DDP_CLUSTER_GPU_FILES must name a GPU once, as a GPU belongs to one node" "$file twice" "leave one out"
    done
    ((${#CLUSTER_GPU_FILES[@]} % $1 == 0)) ||
        die "each of $1 nodes must get as many of the GPUs in DDP_CLUSTER_GPU_FILES" "${#CLUSTER_GPU_FILES[@]}" "leave some out, or start another number of nodes"
}

require_node() {
    [[ -f $CLUSTER_DIR/nodes ]] || die "the cluster must be up" "nothing in $CLUSTER_DIR" "run $0 up"
    local node
    for node in $(node_names); do [[ ${1:-} != "$node" ]] || return 0; done
    die "the node must be one of $(node_names | xargs)" "${1:-none}" "name one of them"
}

# Two who start or stop it at once take turns.
lock() {
    exec 9>"/run/lock/ddp-cluster.lock"
    flock -w 120 9 || die "the cluster must be changed once at a time" "another one still running after 120 s" "look for it with: fuser /run/lock/ddp-cluster.lock"
}

is_off() { [[ -e $CLUSTER_DIR/run/$1.off ]]; }

wanted_nodes() {
    local count=${1:-}
    [[ -n $count ]] || count=$(cat "$CLUSTER_DIR/nodes" 2>/dev/null || printf 2)
    [[ $count =~ ^([1-9]|1[0-6])$ ]] ||
        die "the number of nodes must be 1 to $CLUSTER_MAX_NODES" "$count" "try: $0 up 2"
    printf '%s' "$count"
}

cmd_up() {
    local count node nodes
    count=$(wanted_nodes "$@")
    require_gpus "$count"
    mapfile -t nodes < <(first_nodes "$count")
    require_names_free "${nodes[@]}"
    require_directory
    umask 022
    mkdir -p "$CLUSTER_DIR" && : >"$CLUSTER_MARK"
    resize "$count"
    network_up
    hosts_write "${nodes[@]}"
    munged_start
    for node in "${nodes[@]}"; do node_network_up "$node"; done
    slurmctld_start
    for node in "${nodes[@]}"; do node_heal "$node"; done
    await_ready "${nodes[@]}"
    say "$count nodes up; for this shell: eval \"\$($0 env)\""
}

require_directory() {
    local parent=$CLUSTER_DIR
    if [[ -e $CLUSTER_DIR && ! -e $CLUSTER_MARK && -n $(ls -A "$CLUSTER_DIR") ]]; then
        die "$CLUSTER_DIR must be new, empty or a cluster's" "other files in it" "set DDP_CLUSTER_DIR"
    fi
    while [[ $parent == /*/* ]]; do
        parent=${parent%/*}
        [[ ! -e $parent || $(stat -c %A -- "$parent") == *[xt] ]] ||
            die "every user must be able to enter $CLUSTER_DIR, or munged refuses" "$parent closed to others" "set DDP_CLUSTER_DIR"
    done
}

# A host name of ours that already means something else here would send jobs to that machine.
require_names_free() {
    local node address
    for node in "$@"; do
        address=$(getent ahostsv4 "$node" | awk 'NR == 1 { print $1 }') || true
        [[ -z $address || $address == "$(node_address "$node")" ]] ||
            die "the host name $node must be $*" "$address for it" "choose another DDP_CLUSTER_PREFIX"
    done
}

# Slurm 22.05 takes a changed list of nodes only when its daemons start; running steps live on.
resize() {
    local count=$1 node
    [[ -f $CLUSTER_CONF && $(_slurm_conf "$count" && _gres_conf "$count") == "$(cat "$CLUSTER_CONF" "$CLUSTER_DIR/etc/gres.conf")" ]] && return 0
    slurmctld_stop
    for node in $(node_names); do
        slurmd_stop "$node"
        (($(node_number "$node") <= count)) || node_remove "$node"
    done
    write_configuration "$count"
}

node_remove() {
    node_kill_processes "$1"
    node_network_down "$1"
    cgroups_remove "$1"
    rm -rf "${CLUSTER_DIR:?}/spool/$1" "$CLUSTER_DIR/run/$1.off"
}

node_heal() {
    plug "$1"
    if is_off "$1"; then
        slurmd_start "$1" -b # -b: the node says that it was rebooted
        rm -f "$CLUSTER_DIR/run/$1.off"
    else
        slurmd_start "$1"
    fi
}

await_ready() {
    local node
    for node in "$@"; do
        wait_for "$CLUSTER_READY_S" _node_usable "$node" && continue
        say "$node is not ready after $CLUSTER_READY_S s; last lines of $CLUSTER_DIR/log/$node.log:"
        tail -n 5 "$CLUSTER_DIR/log/$node.log" "$CLUSTER_DIR/log/start.log" >&2 || true
        exit 70
    done
}

cmd_down() {
    local node
    slurmctld_stop
    for node in $({ node_names && network_nodes; } | sort -u); do node_remove "$node"; done
    munged_stop
    network_down
    [[ ! -e $CLUSTER_MARK ]] || rm -rf "${CLUSTER_DIR:?}"
    say "down"
}

cmd_status() {
    local node cable power states
    if ! is_running slurmctld "$CLUSTER_CONF"; then
        printf 'the cluster is down\n'
        return 3
    fi
    states=$(slurm_states)
    printf '%-8s %-16s %-8s %-6s %s\n' node address cable power slurm
    for node in $(node_names); do
        cable=cut power=on
        ! is_plugged "$node" || cable=plugged
        ! is_off "$node" || power=off
        printf '%-8s %-16s %-8s %-6s %s\n' "$node" "$(node_address "$node")" "$cable" "$power" \
            "$(awk -v node="$node" '$1 == node { print $2; exit }' <<<"$states")"
    done
}

cmd_env() {
    [[ -f $CLUSTER_CONF ]] || die "the cluster must be up" "nothing in $CLUSTER_DIR" "run $0 up"
    printf 'export SLURM_CONF=%s\n' "$CLUSTER_CONF"
}

cmd_exec() {
    require_node "${1:-}"
    (($# > 1)) || die "exec must have a node and a command" "no command" "try: $0 exec $1 hostname"
    ! is_off "$1" || die "a command needs a node that is on" "$1 killed" "run $0 heal $1"
    export SLURM_CONF=$CLUSTER_CONF SLURMD_NODENAME=$1
    in_node "$@"
}

cmd_cut() { unplug "$1"; }

# A daemon that lives registers anew: Slurm's next ping may come too late for a node long cut off.
cmd_heal() {
    local running
    mapfile -t running < <(pids_of slurmd "$CLUSTER_CONF" "$1")
    node_heal "$1"
    ((${#running[@]} == 0)) || kill -HUP "${running[@]}"
}

# The cable first: a machine that loses its power sends no shutdown report.
cmd_kill() {
    unplug "$1"
    : >"$CLUSTER_DIR/run/$1.off"
    node_kill_processes "$1"
    cgroups_remove "$1"
}

main() {
    local command=${1:-help}
    shift || true
    case $command in
        help | -h | --help) usage && return ;;
        --version) sed -n 's/^__version__ = "\(.*\)"$/ddp \1/p' "$(dirname -- "${BASH_SOURCE[0]}")/../../trainer/__init__.py" && return ;;
        up | down | cut | heal | kill)
            require_machine
            require_settings
            [[ $command == up || $command == down ]] || require_node "${1:-}"
            lock
            ;;
        status | env | exec) require_settings ;;
        *) die "the command must be one of up, down, status, env, exec, cut, heal, kill" "$command" "see $0 --help" ;;
    esac
    "cmd_$command" "$@"
}

main "$@"
