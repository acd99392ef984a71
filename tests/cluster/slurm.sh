# shellcheck shell=bash
# Configuration and daemons: munged, slurmctld on the host, one slurmd in each node.

# proctrack/cgroup is what clusters run, and it finds processes that left their parents; Slurm
# 22.05 can use it in several slurmd on one machine with the freezer of cgroup v1. Under cgroup v2
# it asks systemd for a scope per slurmd, and they get into each other's way: there, linuxproc.
_proctrack() {
    if [[ -d /sys/fs/cgroup/freezer ]]; then
        printf 'proctrack/cgroup'
    else
        printf 'proctrack/linuxproc'
    fi
}

write_configuration() {
    local count=$1
    mkdir -p "$CLUSTER_DIR"/{etc,log,munge,state,spool,run,gpu,uts}
    _slurm_conf "$count" >"$CLUSTER_CONF"
    make_gpus
    _gres_conf "$count" >"$CLUSTER_DIR/etc/gres.conf"
    if ((${#CLUSTER_GPU_FILES[@]})); then
        _task_prolog "$count" >"$CLUSTER_DIR/etc/task_prolog"
        chmod 755 "$CLUSTER_DIR/etc/task_prolog"
    fi
    printf 'CgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n' >"$CLUSTER_DIR/etc/cgroup.conf"
    printf '%s\n' "$count" >"$CLUSTER_DIR/nodes"
}

# Without real ones the GPUs are files. Slurm allocates plain ones, too, but it sets
# CUDA_VISIBLE_DEVICES and SLURM_JOB_GPUS only for devices: so they are further names of /dev/null,
# where mknod is allowed. A count without File= would be reported as 0, and the node would be INVAL.
make_gpus() {
    local number file
    ((${#CLUSTER_GPU_FILES[@]} == 0)) || return 0
    for ((number = 0; number < CLUSTER_GPUS; number++)); do
        file=$CLUSTER_DIR/gpu/gpu$number
        [[ -c $file ]] || { rm -f "$file" && mknod -m 666 "$file" c 1 3 2>/dev/null; } || : >"$file"
    done
}

# num_gpus NODES: what each of so many nodes has.
num_gpus() {
    if ((${#CLUSTER_GPU_FILES[@]})); then
        printf '%d' $((${#CLUSTER_GPU_FILES[@]} / $1))
    else
        printf '%d' "$CLUSTER_GPUS"
    fi
}

# All nodes may have the same stand-ins; a real GPU belongs to one.
_gres_conf() {
    local node number num_gpus given=0
    num_gpus=$(num_gpus "$1")
    for node in $(first_nodes "$1"); do
        for ((number = 0; number < num_gpus; number++)); do
            printf 'NodeName=%s Name=gpu File=%s\n' "$node" \
                "${CLUSTER_GPU_FILES[given++]:-$CLUSTER_DIR/gpu/gpu$number}"
        done
    done
}

# Slurm numbers the GPUs of each node from 0, and CUDA those of the machine: what a task of the second
# node is given are others than the first node's.
_task_prolog() {
    local line node file
    printf '#!/bin/bash\ndeclare -A gpus\n'
    while read -r line; do
        node=${line#NodeName=} file=${line##*File=}
        printf 'gpus[%s]+="%d "\n' "${node%% *}" "$(_cuda_index "$file")"
    done < <(_gres_conf "$1")
    # shellcheck disable=SC2016 # of that script
    printf '%s\n' 'read -ra own <<<"${gpus[$SLURMD_NODENAME]}"' \
        'for index in $(tr , " " <<<"${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}"); do seen+=,${own[index]}; done' \
        'if [[ $seen && $CUDA_VISIBLE_DEVICES ]]; then echo "export CUDA_VISIBLE_DEVICES=${seen#,}"; fi'
}

# Its place among the machine's, which have minor numbers in the order of the bus.
_cuda_index() {
    local other index=0
    while read -r other; do
        [[ $other != "$1" ]] || break
        index=$((index + 1))
    done < <(find "${1%/*}" -maxdepth 1 -name "nvidia[0-9]*" | sort -V)
    printf '%d' "$index"
}

_slurm_conf() {
    local gres='' node ports
    # Beside Slurm's own 6817 and 6818, and different for every subnet.
    ports=$((26000 + 2 * ${CLUSTER_SUBNET##*.}))
    (($(num_gpus "$1") == 0)) || gres=Gres=gpu:$(num_gpus "$1")
    cat <<END
ClusterName=ddp-$CLUSTER_PREFIX
SlurmctldHost=$(hostname -s)($(host_address))
SlurmctldPort=$ports
SlurmdPort=$((ports + 1))
SlurmUser=root
AuthType=auth/munge
# A requeued job waits for its old credential to expire: 120 s by default, too long for a test.
AuthInfo=socket=$CLUSTER_DIR/munge/munge.socket.2,cred_expire=15
MpiDefault=none
StateSaveLocation=$CLUSTER_DIR/state
SlurmdSpoolDir=$CLUSTER_DIR/spool/%n
# Where the PMIx plugin of each node keeps a directory by the step's number: /tmp is all nodes' here.
TmpFS=$CLUSTER_DIR/spool/%n
SlurmctldPidFile=$CLUSTER_DIR/run/slurmctld.pid
SlurmdPidFile=$CLUSTER_DIR/run/%n.pid
SlurmctldLogFile=$CLUSTER_DIR/log/slurmctld.log
SlurmdLogFile=$CLUSTER_DIR/log/%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=$(_proctrack)
TaskPlugin=task/none
# More CPUs than the machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
# A job is looked at at once, not when the next batch of them is.
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
# Seconds between SIGTERM and SIGKILL: Slurm's default, because four ranks that have just started
# on two busy cores need more than ten to reach the end of a step.
KillWait=30
# A node that does not answer this long is DOWN.
SlurmdTimeout=15
# A node that comes back is used again, whatever took it away.
ReturnToService=2
JobRequeue=1
InactiveLimit=0
OverTimeLimit=0
CompleteWait=0
# Ended jobs stay visible to scontrol for a day.
MinJobAge=86400
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$CLUSTER_DIR/log/jobcomp.log
JobAcctGatherType=jobacct_gather/none
END
    for node in $(first_nodes "$1"); do
        printf 'NodeName=%s NodeAddr=%s CPUs=%d Sockets=1 CoresPerSocket=%d ThreadsPerCore=1 RealMemory=64000 %s State=UNKNOWN\n' \
            "$node" "$(node_address "$node")" "$CLUSTER_CPUS" "$CLUSTER_CPUS" "$gres"
    done
    printf 'PartitionName=debug Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP\n'
    ((${#CLUSTER_GPU_FILES[@]} == 0)) || printf 'TaskProlog=%s\n' "$CLUSTER_DIR/etc/task_prolog"
    [[ -z $CLUSTER_EXTRA ]] || cat -- "$CLUSTER_EXTRA"
    ((CLUSTER_PREEMPT == 0)) || _preemption
}

# A job of the partition urgent takes the nodes of one in debug, which is requeued; in the partition
# spot it is cancelled instead, with some seconds of grace.
_preemption() {
    printf '%s\n' 'PreemptType=preempt/partition_prio' 'PreemptMode=REQUEUE' \
        'PartitionName=spot Nodes=ALL MaxTime=UNLIMITED State=UP PreemptMode=CANCEL GraceTime=20' \
        'PartitionName=urgent Nodes=ALL MaxTime=UNLIMITED State=UP PriorityTier=100'
}

# One munged serves all nodes, because they share the host's files; it is not /run/munge's.
munged_start() {
    local key=$CLUSTER_DIR/munge/munge.key
    ! is_running munged "--key-file=$key" || return 0
    [[ -s $key ]] || (umask 077 && head -c 128 /dev/urandom >"$key")
    rm -f "$CLUSTER_DIR"/munge/munge.socket.2*
    start_daemon munged "--key-file=$key" "--socket=$CLUSTER_DIR/munge/munge.socket.2" \
        "--pid-file=$CLUSTER_DIR/munge/munged.pid" "--log-file=$CLUSTER_DIR/log/munged.log" \
        "--seed-file=$CLUSTER_DIR/munge/munged.seed"
}

munged_stop() { stop_daemon munged "--key-file=$CLUSTER_DIR/munge/munge.key"; }

# Started again when it crashes, as systemd does on a real cluster: that of 26.05 does at times.
slurmctld_start() {
    ! is_running slurmctld "$CLUSTER_CONF" || return 0
    # shellcheck disable=SC2016 # of the inner shell
    start_daemon setsid --fork bash -c 'for ((tries = 0; tries < 30; tries++)); do
        slurmctld -f "$0" -D && exit
        code=$?
        ((code != 137 && code != 143)) || exit
        echo "slurmctld has ended with $code: it is started again"
        sleep 1 # its port may be in use for a moment
    done' "$CLUSTER_CONF"
    wait_for 10 is_running slurmctld "$CLUSTER_CONF" ||
        die "slurmctld must run" "nothing" "see $CLUSTER_DIR/log/start.log"
}

slurmctld_stop() { stop_daemon slurmctld "$CLUSTER_CONF"; }

# slurmd_start NODE [OPTION…]
slurmd_start() {
    local node=$1
    shift
    is_running slurmd "$CLUSTER_CONF" "$node" ||
        start_daemon nsenter --net="/run/netns/$(netns_of "$node")" --uts="$(uts_of "$node")" -- \
            slurmd -f "$CLUSTER_CONF" -N "$node" "$@"
}

slurmd_stop() { stop_daemon slurmd "$CLUSTER_CONF" "$1"; }

# Slurm leaves its directories in every cgroup hierarchy; only empty ones can be removed.
cgroups_remove() {
    local top
    for top in /sys/fs/cgroup/slurm_"$1" /sys/fs/cgroup/*/slurm_"$1"; do
        [[ ! -d $top ]] || find "$top" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
}

# Prints "NODE STATE" lines, or nothing where no controller answers.
slurm_states() {
    SLURM_CONF=$CLUSTER_CONF timeout 15 sinfo -h -N -o '%N %T' 2>/dev/null || true
}

_node_usable() {
    case $(slurm_states | awk -v node="$1" '$1 == node { print $2; exit }') in
        idle | mixed | allocated | completing | planned) ;;
        down | drained | drain)
            # It was taken out for a fault that `up` has just mended.
            SLURM_CONF=$CLUSTER_CONF timeout 15 scontrol update "nodename=$1" state=resume 2>/dev/null || true
            return 1
            ;;
        *) return 1 ;;
    esac
}
