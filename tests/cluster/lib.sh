# shellcheck shell=bash disable=SC2034
# Settings, messages and process helpers of the virtual cluster; sourced by cluster.sh.

# Everything the cluster owns lives under one directory, so that another Slurm on the machine
# (/etc/slurm, /run/munge, ports 6817 and 6818) is never touched. Not under /run, which many
# distributions mount noexec: slurmd runs batch scripts from its spool directory.
CLUSTER_DIR=$(realpath -m -- "${DDP_CLUSTER_DIR:-/var/lib/ddp-cluster}")
CLUSTER_CONF=$CLUSTER_DIR/etc/slurm.conf
# `down` removes only a directory that holds this file.
CLUSTER_MARK=$CLUSTER_DIR/.ddp-cluster
CLUSTER_PREFIX=${DDP_CLUSTER_PREFIX:-node}      # node names are this and a number
CLUSTER_SUBNET=${DDP_CLUSTER_SUBNET:-10.213.77} # first three numbers of a /24
CLUSTER_CPUS=${DDP_CLUSTER_CPUS:-8}
CLUSTER_GPUS=${DDP_CLUSTER_GPUS:-2}
# The machine's own, spread over the nodes.
IFS=, read -ra CLUSTER_GPU_FILES <<<"${DDP_CLUSTER_GPU_FILES:-}"
CLUSTER_EXTRA=${DDP_CLUSTER_EXTRA:-}      # a file with further lines for slurm.conf
CLUSTER_PREEMPT=${DDP_CLUSTER_PREEMPT:-0} # 1: partitions that preempt and are preempted
CLUSTER_MAX_NODES=16
CLUSTER_READY_S=60 # how long `up` waits for the nodes to be ready
readonly CLUSTER_DIR CLUSTER_CONF CLUSTER_MARK CLUSTER_PREFIX CLUSTER_SUBNET CLUSTER_CPUS CLUSTER_GPUS CLUSTER_GPU_FILES
readonly CLUSTER_PREEMPT CLUSTER_MAX_NODES CLUSTER_READY_S

say() { printf 'cluster: %s\n' "$*" >&2; }

# die RULE FOUND REMEDY: one line, exit 64.
die() {
    printf 'cluster: %s; found %s; %s\n' "$1" "$2" "$3" >&2
    exit 64
}

# wait_for SECONDS COMMAND…: polls until the command succeeds; fails at the deadline.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}

# Pids of our daemons, found by an argument that only they have: it needs no pid file, so a
# crash or a reboot leaves nothing stale behind. A container, or another Debian's root, may have
# a cluster of the same names: its processes are visible here, and not ours.
# pids_of PROGRAM ARGUMENT…
pids_of() {
    local program=$1 argument path arguments
    shift
    for path in /proc/[0-9]*; do
        # A process may end while we look at it.
        mapfile -d '' -t arguments <"$path/cmdline" || continue
        [[ ${arguments[0]:-} == "$program" || ${arguments[0]:-} == */"$program" ]] || continue
        [[ $path/ns/pid -ef /proc/self/ns/pid ]] || continue
        for argument in "$@"; do
            _is_among "$argument" "${arguments[@]}" || continue 2
        done
        printf '%s\n' "${path#/proc/}"
    done 2>/dev/null
}

_is_among() {
    local wanted=$1 candidate
    shift
    for candidate in "$@"; do [[ $candidate != "$wanted" ]] || return 0; done
    return 1
}

is_running() { [[ -n $(pids_of "$@") ]]; }
is_gone() { ! is_running "$@"; }

# stop_daemon PROGRAM ARGUMENT…: asks, waits five seconds, then kills.
stop_daemon() {
    local pids
    mapfile -t pids < <(pids_of "$@")
    ((${#pids[@]})) || return 0
    kill -TERM "${pids[@]}" 2>/dev/null || true
    wait_for 5 is_gone "$@" && return 0
    kill -KILL "${pids[@]}" 2>/dev/null || true
    wait_for 5 is_gone "$@"
}

# Daemons get a clean environment, no terminal and not our lock: what they would inherit from
# one user's shell would otherwise end up in everybody's jobs.
start_daemon() {
    (cd / && exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 SLURM_CONF="$CLUSTER_CONF" "$@") \
        </dev/null >>"$CLUSTER_DIR/log/start.log" 2>&1 9>&- && return
    say "cannot start: $*; the last lines of $CLUSTER_DIR/log/start.log:"
    tail -n 5 "$CLUSTER_DIR/log/start.log" >&2
    exit 70
}

node_names() { [[ ! -f $CLUSTER_DIR/nodes ]] || first_nodes "$(<"$CLUSTER_DIR/nodes")"; }
first_nodes() { seq -f "$CLUSTER_PREFIX%.0f" 1 "$1"; }
node_number() { printf '%d' "${1#"$CLUSTER_PREFIX"}"; }
node_address() { printf '%s.%d' "$CLUSTER_SUBNET" "$(node_number "$1")"; }
host_address() { printf '%s.254' "$CLUSTER_SUBNET"; }
