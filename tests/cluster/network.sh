# shellcheck shell=bash disable=SC2119,SC2120
# A bridge on the host; for each node a network namespace, a host name and a cable to the bridge.

readonly BRIDGE=ddp-$CLUSTER_PREFIX
readonly HOSTS_BEGIN="# ddp virtual cluster $CLUSTER_PREFIX: begin"
readonly HOSTS_END="# ddp virtual cluster $CLUSTER_PREFIX: end"

cable_of() { printf 'ddpv-%s' "$1"; } # host end of the node's cable
netns_of() { printf 'ddp-%s' "$1"; }
uts_of() { printf '%s/uts/%s' "$CLUSTER_DIR" "$1"; }

bridge_owner() { cat "/sys/class/net/$BRIDGE/ifalias" 2>/dev/null || true; }

# Nodes that still have a network, even where the cluster's own files were lost.
network_nodes() {
    local path
    for path in /run/netns/ddp-"$CLUSTER_PREFIX"[0-9]*; do
        [[ ! -e $path ]] || printf '%s\n' "${path##*/ddp-}"
    done
}

# in_node NODE COMMAND…: with the node's network and host name, and the host's files.
# Not `ip netns exec`: it remounts /sys, and slurmd then finds no cgroup file system.
in_node() {
    local node=$1
    shift
    nsenter --net="/run/netns/$(netns_of "$node")" --uts="$(uts_of "$node")" -- "$@"
}

network_up() {
    if [[ ! -e /sys/class/net/$BRIDGE ]]; then
        ip link add "$BRIDGE" type bridge forward_delay 0
        ip link set "$BRIDGE" alias "$CLUSTER_DIR"
    fi
    ip addr replace "$(host_address)/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
    _firewall -C || _firewall -I || say "no iptables: assuming that nothing filters $BRIDGE"
}

network_down() {
    while _firewall -D; do :; done
    [[ ! -e /sys/class/net/$BRIDGE ]] || ip link del "$BRIDGE"
    hosts_write # no node: our lines go
}

# dockerd sets the FORWARD policy to DROP, which also drops what merely crosses a bridge; a host
# firewall may drop what the nodes send to srun and slurmctld on the host.
_firewall() {
    iptables -w "$1" FORWARD -i "$BRIDGE" -o "$BRIDGE" -j ACCEPT 2>/dev/null &&
        iptables -w "$1" INPUT -i "$BRIDGE" -j ACCEPT 2>/dev/null
}

_is_namespace() { [[ $(stat -f -c %T -- "$1" 2>/dev/null) == nsfs ]]; }

node_network_up() {
    local node=$1 cable ns uts
    cable=$(cable_of "$node") ns=$(netns_of "$node") uts=$(uts_of "$node")
    if ! _is_namespace "/run/netns/$ns"; then
        rm -f "/run/netns/$ns"
        ip netns add "$ns"
    fi
    if ! _is_namespace "$uts"; then
        mkdir -p "${uts%/*}"
        : >"$uts"
        unshare --uts="$uts" hostname "$node"
    fi
    if [[ ! -e /sys/class/net/$cable ]]; then
        ip link add "$cable" type veth peer name eth0 netns "$ns"
        ip link set "$cable" master "$BRIDGE"
        ip -n "$ns" addr add "$(node_address "$node")/24" dev eth0
    fi
    ip -n "$ns" link set lo up
    ip -n "$ns" link set eth0 up
}

node_network_down() {
    local node=$1 uts
    uts=$(uts_of "$node")
    [[ ! -e /sys/class/net/$(cable_of "$node") ]] || ip link del "$(cable_of "$node")"
    [[ ! -e /run/netns/$(netns_of "$node") ]] || ip netns del "$(netns_of "$node")"
    ! _is_namespace "$uts" || umount "$uts"
    rm -f "$uts"
}

plug() { ip link set "$(cable_of "$1")" up; }
unplug() { ip link set "$(cable_of "$1")" down; }
is_plugged() { [[ $(cat "/sys/class/net/$(cable_of "$1")/carrier" 2>/dev/null) == 1 ]]; }

# Every process in the node's network, however it was started or reparented, dies at once.
node_kill_processes() {
    local ns
    ns=$(netns_of "$1")
    wait_for 10 _kill_round "$ns" || say "$1: some processes do not die: $(ip netns pids "$ns" | xargs)"
}

_kill_round() {
    local pids
    [[ -e /run/netns/$1 ]] || return 0
    mapfile -t pids < <(ip netns pids "$1")
    ((${#pids[@]})) || return 0
    kill -KILL "${pids[@]}" 2>/dev/null || true
    return 1
}

# hosts_write [NODE…]: our lines in /etc/hosts name these nodes; without any, they go.
# Written in place, not renamed over: in a container /etc/hosts is a mount of its own.
hosts_write() {
    local node rest
    rest=$(sed "/^$HOSTS_BEGIN\$/,/^$HOSTS_END\$/d" /etc/hosts)
    {
        [[ -z $rest ]] || printf '%s\n' "$rest"
        (($# == 0)) || printf '%s\n' "$HOSTS_BEGIN"
        for node in "$@"; do printf '%s %s\n' "$(node_address "$node")" "$node"; done
        (($# == 0)) || printf '%s\n' "$HOSTS_END"
    } | _replace_in_place /etc/hosts
}

_replace_in_place() {
    local text
    text=$(cat)
    [[ $text == "$(<"$1")" ]] || printf '%s\n' "$text" >"$1"
}
