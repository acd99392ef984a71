# shellcheck shell=bash disable=SC2034,SC2153 # set here, read by the other parts
# The settings in force and where each came from. Knows names and defaults; starts nothing.

declare -a SETTING_NAMES=()
declare -A SETTING_ORIGINS=()
declare -a SHOWN=()

# Names that a rank must see as the job sees them, also where an image sets them otherwise. NVIDIA_, because
# Enroot's hook reads it at every start: a batch script's container must hand the job's choice to its step.
readonly FORWARDED_PREFIXES='DDP_|NCCL_|NVIDIA_|NVSHMEM_|TORCH_|TORCHELASTIC_|GLOO_|CUDA_|OMP_|MKL_|PYTHON|PYTORCH_|UCX_|FI_|MASTER_|HF_|WANDB_'

# setting NAME ORIGIN VALUE: the default of a setting; what the user set stays as it is.
setting() {
    if [[ -v $1 ]]; then
        setting_note "$1" 'the environment'
    else
        printf -v "$1" '%s' "$3"
        setting_note "$1" "$2"
    fi
}

# setting_switch NAME ORIGIN VALUE: a setting that is 1 or 0, in whatever words; empty is unset.
setting_switch() {
    local value
    if [[ -v $1 && ! ${!1} ]]; then unset "$1"; fi
    setting "$@"
    value=$(parse_switch "$1" "${!1}")
    printf -v "$1" '%s' "$value"
}

# setting_note NAME ORIGIN: records and exports what is in force.
setting_note() {
    [[ -v SETTING_ORIGINS[$1] ]] || SETTING_NAMES+=("$1")
    SETTING_ORIGINS[$1]=$2
    export "${1?}"
}

settings_debug_flags() {
    setting_switch DEBUG 'the default' 0
    if ((DEBUG)); then
        setting NCCL_DEBUG 'DEBUG=1' INFO
        setting TORCH_DISTRIBUTED_DEBUG 'DEBUG=1' DETAIL
        setting CUDA_LAUNCH_BLOCKING 'DEBUG=1' 1
    fi
    setting PYTHONFAULTHANDLER 'the default' 1
    setting NCCL_DEBUG 'the default' WARN
    # The flight recorder. Before torch 2.9 the buffer was on by default; its old name earns a
    # warning from every rank today.
    setting TORCH_NCCL_DUMP_ON_TIMEOUT 'the default' 1
    setting TORCH_FR_BUFFER_SIZE 'the default' 2000
    # Where it is looked for. Its name before torch 2.9 earns a warning from every rank, too.
    setting TORCH_FR_DUMP_TEMP_FILE 'the watchdog' "$DDP_RUN_DIR/debug/nccl-trace-rank-"
    # The watchdog asks for a hung rank's dump: the backend that is new in torch 2.15 does not listen.
    # The trainer, which torchrun may start without us, sets the same (trainer/environment.py).
    setting TORCH_DIST_USE_NCCL2 'the watchdog' 0
    setting CUDA_DEVICE_ORDER 'as NVML and Slurm count' PCI_BUS_ID
}

# Ranks of one node share its CPUs: Slurm says how many a task has, else we divide.
settings_cpus() {
    local cpus ranks=$NUM_LOCAL_RANKS
    if [[ ${SLURM_CPUS_PER_TASK-} ]]; then
        cpus=$SLURM_CPUS_PER_TASK
        # 22.05 and 23.02 do not take it from SLURM_CPUS_PER_TASK: every rank would be on one core.
        setting SRUN_CPUS_PER_TASK 'SLURM_CPUS_PER_TASK' "$cpus"
        ranks=$((NUM_LOCAL_RANKS / NUM_LOCAL_TASKS))
    else
        # salloc's shell on a login node has only the list of its nodes, such as 72(x2),36.
        cpus=${SLURM_CPUS_ON_NODE:-${SLURM_JOB_CPUS_PER_NODE:-$(nproc)}}
        cpus=${cpus%%[(,]*}
    fi
    cpus=$((cpus / ranks))
    if ((cpus < 2 && ! IS_OWN_COMMAND)) && [[ ${SLURM_GPUS_ON_NODE-} =~ ^[1-9] ]]; then
        log_info "warning: a rank with a GPU and its data loaders have $((cpus > 0 ? cpus : 1)) CPU: give --cpus-per-task"
    fi
    setting OMP_NUM_THREADS "CPUs of a rank" "$((cpus > 0 ? cpus : 1))"
}

settings_run() {
    setting DDP_OUT 'out/ in the submit directory' "$SUBMIT_DIR/out"
    [[ $DDP_OUT ]] || die "DDP_OUT must name a directory, found an empty name: correct it, or unset it for out/ in the submit directory"
    [[ $DDP_OUT == /* ]] || DDP_OUT=$PWD/$DDP_OUT
    [[ $DDP_OUT$JOBS_DIR != *$'\n'* ]] || die "the project's and the output's directory must have no line break in their names, found $JOBS_DIR and $DDP_OUT: rename them"
    setting DDP_JOB_ID "$JOB_ID_ORIGIN" "$JOB_ID"
    if [[ -v DDP_RUN_NAME ]]; then
        [[ $DDP_RUN_NAME =~ ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$ ]] ||
            die "DDP_RUN_NAME must be letters, digits, '.', '_' and '-', found '$DDP_RUN_NAME': give the run such a name"
        setting_note DDP_RUN_NAME 'the environment'
    fi
    # The directory is this job's own: what an outer job exported does not count.
    DDP_RUN_DIR=$DDP_OUT/${DDP_RUN_NAME:-slurm-$DDP_JOB_ID}
    setting_note DDP_RUN_DIR 'DDP_OUT and the run'"'"'s name'
    settings_check_files
    settings_attempt
    # The same after a requeue and in every link of a chain, because it comes from the name.
    setting DDP_SEED "the run's name" "$(printf '%s' "${DDP_RUN_DIR##*/}" | cksum | cut -d' ' -f1)"
    [[ $DDP_SEED =~ ^[0-9]{1,10}$ ]] ||
        die "DDP_SEED must be a whole number below 10^10, found '$DDP_SEED': correct it, or unset it"
    setting_switch DDP_MONITOR 'the default' 1
    setting DDP_MONITOR_INTERVAL 'the default' 15
    require_integer DDP_MONITOR_INTERVAL "$DDP_MONITOR_INTERVAL" 1 86400
    setting DDP_TIMESTAMP_INTERVAL 'the default' 120
    require_integer DDP_TIMESTAMP_INTERVAL "$DDP_TIMESTAMP_INTERVAL" 1 86400
    settings_grace
    settings_restarts
    settings_end_time
    settings_buffer
}

# A log is a file, and Python keeps the last 8 KiB for a file to itself: the words before a SIGKILL, a
# crash or a hang would be lost, and nobody could watch. Our trainer flushes by itself.
settings_buffer() {
    if ((IS_OWN_COMMAND)); then setting PYTHONUNBUFFERED "a command of one's own" 1; fi
}

# A pipe keeps its reader for ever.
settings_check_files() {
    local file
    for file in "$DDP_RUN_DIR"/{events.jsonl,checkpoints/latest}; do
        [[ ! -e $file || -f $file ]] ||
            die "a run's own files must be plain ones, found something else at $file: remove it, or choose another DDP_RUN_NAME"
    done
}

settings_attempt() {
    DDP_ATTEMPT=$(($(grep -acs '"event": "start"' "$DDP_RUN_DIR/events.jsonl" || :) + 1))
    setting_note DDP_ATTEMPT 'starts in events.jsonl'
    DDP_LAUNCH_ID=$DDP_JOB_ID.$DDP_ATTEMPT.$$
    setting_note DDP_LAUNCH_ID 'this start'
}

# A rank must be gone before Slurm's own SIGKILL ends the scripts that tell what happened.
settings_grace() {
    local kill_wait=''
    if ((HAVE_CLIENT)); then
        kill_wait=$(scontrol show config | sed -n 's/^KillWait *= *\([0-9]*\).*/\1/p')
    fi
    if [[ $kill_wait ]]; then
        setting DDP_GRACE "Slurm's KillWait of $kill_wait s, less 5" "$((kill_wait > 6 ? kill_wait - 5 : 1))"
    else
        setting DDP_GRACE 'the default' 25
    fi
    require_integer DDP_GRACE "$DDP_GRACE" 0 86400
}

# When the time limit ends the job, for whoever has to plan a last checkpoint; empty if unknown.
settings_end_time() {
    local end
    end=$(job_field EndTime "$JOB_INFO")
    DDP_END_TIME=$(if [[ $end && $end != Unknown ]]; then date -d "$end" +%s 2>/dev/null || :; fi)
    setting_note DDP_END_TIME "Slurm's EndTime of the job"
    DDP_NUM_NODES=$NUM_NODES
    setting_note DDP_NUM_NODES 'the nodes of this step'
}

# What a command of the user's own does when it starts again, only the user knows: so that one is
# started again on demand only, our trainer by default.
settings_restarts() {
    if ((IS_OWN_COMMAND)); then
        setting DDP_MAX_RESTARTS "a command of one's own" 0
    else
        setting DDP_MAX_RESTARTS 'the default' 3
    fi
    require_integer DDP_MAX_RESTARTS "$DDP_MAX_RESTARTS" 0 1000
    setting DDP_MAX_IDLE_RESTARTS 'the default' 1
    require_integer DDP_MAX_IDLE_RESTARTS "$DDP_MAX_IDLE_RESTARTS" 0 1000
    setting_switch DDP_REQUEUE 'the default' 1
    setting DDP_ON_BUSY 'the default' refuse
    [[ $DDP_ON_BUSY == refuse || $DDP_ON_BUSY == wait ]] ||
        die "DDP_ON_BUSY must be refuse or wait, found '$DDP_ON_BUSY': set one of them, or unset it"
    # Slurm does not show whether a job has --no-kill.
    setting_switch DDP_NO_KILL 'SBATCH_NO_KILL' "$([[ -v SBATCH_NO_KILL && $SBATCH_NO_KILL != off ]] && echo 1 || echo 0)"
    setting DDP_SPARE_NODES 'the default' 0
    require_integer DDP_SPARE_NODES "$DDP_SPARE_NODES" 0 $((NUM_NODES_ALLOCATED - 1))
    if [[ -v DDP_HANG_TIMEOUT ]]; then
        require_integer DDP_HANG_TIMEOUT "$DDP_HANG_TIMEOUT" 0 86400
        setting_note DDP_HANG_TIMEOUT 'the environment'
    fi
}

# An interface for the master's address is the one for the traffic, too.
settings_network() {
    setting_note MASTER_ADDR "${SETTING_ORIGINS[MASTER_ADDR]}"
    if [[ ${DDP_IFACE-} ]]; then
        setting_note DDP_IFACE 'the environment'
        setting NCCL_SOCKET_IFNAME 'DDP_IFACE' "=$DDP_IFACE" # without =, eth1 is eth10, too
        setting GLOO_SOCKET_IFNAME 'DDP_IFACE' "$DDP_IFACE"
    fi
}

# settings_chosen: names what is no wish of the user's, for who starts another job from within this one.
settings_chosen() {
    local name
    DDP_CHOSEN=''
    for name in "${SETTING_NAMES[@]}"; do
        if [[ ${SETTING_ORIGINS[$name]} != 'the environment' ]]; then DDP_CHOSEN+="${DDP_CHOSEN:+ }$name"; fi
    done
    export DDP_CHOSEN
}

# A mistyped setting would be silently without effect.
settings_warn_unknown() {
    local known=' DDP_HOME DDP_IMAGE DDP_MOUNTS DDP_PYTHON DDP_IFACE DDP_NPROC_PER_NODE DDP_RUN_NAME DDP_SBATCH_ARGS DDP_SWEEP_FILE DDP_NODE DDP_BEAT_DIR '
    local name
    for name in $(compgen -e DDP_); do
        # Those of the virtual cluster and of other Debians are the tests'.
        if [[ ! -v SETTING_ORIGINS[$name] && $known != *" $name "* && $name != DDP_@(CLUSTER|MATRIX)_* ]]; then
            log_info "warning: there is no setting $name; it has no effect (settings are listed in README.md)"
        fi
    done
}

readonly SECRETS='TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE' # in the name of a variable
# The password of an address, and the tokens of those whose tokens can be known.
readonly SECRET_SHAPES='(://[^]/@:[:space:]]*:)[^]/[:space:]]+@|(^|[^[:alnum:]])(hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[[:alnum:]_-]{16,}'

is_secret() {
    [[ $1 =~ ($SECRETS) ]]
}

# hide_shapes TEXT: sets SHOWN_TEXT to it without what looks like a secret, whatever its name.
hide_shapes() {
    local rest=$1 found
    SHOWN_TEXT=''
    while [[ $rest =~ $SECRET_SHAPES ]]; do
        found=${BASH_REMATCH[0]}
        SHOWN_TEXT+="${rest%%"$found"*}${BASH_REMATCH[1]}${BASH_REMATCH[2]}***${BASH_REMATCH[1]:+@}"
        rest=${rest#*"$found"}
    done
    SHOWN_TEXT+=$rest
}

# hide_secrets WORD...: sets SHOWN to the words of a command as they may stand in a log. Closer than
# is_secret, for a variable may be left out of the record, and --tokenizer may not.
hide_secrets() {
    local word name hide=0
    SHOWN=()
    for word in "$@"; do
        name=${word%%=*} name=${name^^}
        if ((hide)); then
            word='***' hide=0
        elif [[ $name =~ (^|[-_])($SECRETS|PASSWORD|PASSWD|PASSPHRASE|APIKEY|CREDENTIALS|AUTHORIZATION)$ ]]; then
            if [[ $word == *=* ]]; then word="${word%%=*}=***"; elif [[ $word == --* ]]; then hide=1; fi
        fi
        hide_shapes "$word"
        SHOWN+=("$SHOWN_TEXT")
    done
}

settings_print() {
    local name others
    # But for what describes an image.
    mapfile -t others < <(other_names | grep -vE '^(NVIDIA_.*|.*_VERSION|DDP_(CHOSEN|HOME|NODE))$' || :)
    {
        printf '%-34s %-44s %s\n' setting value from
        if [[ $PYTHON && ! ${DDP_PYTHON-} && $PLACE == bare-* ]]; then
            settings_print_row DDP_PYTHON "${PYTHON/\/jobs\/..\///}" 'the first that is there'
        fi
        for name in "${SETTING_NAMES[@]}" "${others[@]}"; do
            settings_print_row "$name" "${!name}" "${SETTING_ORIGINS[$name]:-the environment}"
        done
    } >&2 || :
}

# settings_print_row NAME VALUE ORIGIN
settings_print_row() {
    hide_shapes "$2"
    printf '%-34s %-44q %s\n' "$1" "$SHOWN_TEXT" "$3"
}

# The settings, and beside them what else a rank will see of the forwarded names.
settings_json() {
    local name value others separator='' JSON
    mapfile -t others < <(other_names)
    printf '{'
    for name in "${SETTING_NAMES[@]}" "${others[@]}"; do
        hide_shapes "${!name}"
        json_quote "$SHOWN_TEXT"
        value=$JSON
        json_quote "${SETTING_ORIGINS[$name]:-the environment}"
        printf '%s"%s": {"value": %s, "origin": %s}' "$separator" "$name" "$value" "$JSON"
        separator=', '
    done
    printf '}'
}

# check_mountable PATH: Pyxis separates mounts by commas and their parts by colons, and writes them
# between double quotes into a script that Enroot's bash runs.
check_mountable() {
    case $1 in
        *[,:\$\`\"\\]* | *$'\n'*)
            die "a path to mount must hold none of , : \$ \` \" \\ and newlines, found $(printf '%q' "$1"): rename it, or work from another directory"
            ;;
    esac
}

# extra_mounts: prints DDP_MOUNTS an entry a line. Pyxis says once a task what it does not understand,
# and sbatch then goes on without any mount.
extra_mounts() {
    local entry entries=()
    IFS=, read -ra entries <<<"${DDP_MOUNTS-}"
    for entry in "${entries[@]}"; do
        [[ $entry =~ ^(([./][^:]*|tmpfs|umount)(:[./][^:]*(:.*)?)?)?$ ]] ||
            die "DDP_MOUNTS must be SOURCE:TARGET, with commas between several, each beginning with / or ., found '$entry': write for example DDP_MOUNTS=/data:/data"
        if [[ $entry ]]; then printf '%s\n' "$entry"; fi
    done
}

# job_names: the exported names with one of the prefixes, one a line.
job_names() {
    compgen -e | grep -E "^($FORWARDED_PREFIXES)" || :
}

# other_names: those of them that are no settings, and no secrets.
other_names() {
    local name
    for name in $(job_names); do
        if [[ ! -v SETTING_ORIGINS[$name] ]] && ! is_secret "$name"; then echo "$name"; fi
    done
}

# forwarded_names: those that mean something in an image: the host's Python and CUDA do not.
forwarded_names() {
    job_names | grep -vxE 'DDP_(HOME|IMAGE|MOUNTS|PYTHON)|PYTHONHOME|CUDA_(HOME|PATH|ROOT|DIR)' || :
}
