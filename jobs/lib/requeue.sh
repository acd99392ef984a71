# shellcheck shell=bash disable=SC2034,SC2153 # set here, read by the other parts
# Back to the queue: what Slurm has in mind with this job, its requeue, its successor.
#
# Seen with Slurm 22.05: `scontrol requeue` works on a running job, and on one that is completing
# after its time limit or a preemption by cancelling; it is refused where Requeue=0; and it brings
# back a job that was cancelled, too, which therefore must be told from the others.

# What a successor inherits from `scontrol show job`: field, and option of sbatch.
readonly REQUEUE_FIELDS='NumTasks=--ntasks Partition=--partition Account=--account
    QOS=--qos TimeLimit=--time Features=--constraint Reservation=--reservation Licenses=--licenses
    MinMemoryNode=--mem MinMemoryCPU=--mem-per-cpu TresPerNode=--gres TresPerJob=--gpus
    TresPerTask=--gpus-per-task TresPerSocket=--gpus-per-socket CpusPerTres=--cpus-per-gpu
    MemPerTres=--mem-per-gpu Nice=--nice Network=--network TresBind=--gpu-bind TresFreq=--gpu-freq
    MinTmpDiskNode=--tmp Switches=--switches WCKey=--wckey MailType=--mail-type MailUser=--mail-user'

# requeue_name: the job as scontrol takes it. An array's last task has the id of the whole array.
requeue_name() {
    printf '%s' "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"
    if [[ ! ${SLURM_ARRAY_JOB_ID-} ]]; then printf '%s' "$SLURM_JOB_ID"; fi
}

# The user's own words, in which anything may stand: each has a line of its own.
readonly JOB_WORDS='Command|SubmitLine|WorkDir|Std(Err|In|Out)|[A-Za-z]*Comment|Extra'

# job_info: what the controller says of this job. Under load it may not answer at once.
job_info() {
    timeout -k 1 30 scontrol show job "$(requeue_name)" 2>/dev/null && return 0
    pause 1
    timeout -k 1 30 scontrol show job "$(requeue_name)" 2>/dev/null
}

# job_field NAME INFO: a field without spaces; nothing where it is not set.
job_field() {
    local value
    value=$(sed -nE "/^ *($JOB_WORDS)=/d; s/ JobName=.*//; /(^| )$1=[^ ]/{s/(^|.* )$1=([^ ]+).*/\2/p; q}" <<<"$2")
    if [[ $value != '(null)' && $value != N/A ]]; then printf '%s' "$value"; fi
}

# job_path NAME INFO: a field that may hold spaces. Slurm before 26.05 writes one behind a comment.
job_path() {
    sed -n "s/^ *$1=//; T; s/ $//; p" <<<"$2"
}

# requeue_fate INFO: prints what Slurm does with the job:
#   running, preempted, requeued (by Slurm itself), time limit or whatever reason Slurm gives,
#   cancelled (by a person), unknown
# A completing job does not show its state: it was cancelled if nothing else explains its end.
requeue_fate() {
    local state reason restarts preempted
    state=$(job_field JobState "$1") reason=$(job_field Reason "$1")
    restarts=$(job_field Restarts "$1") preempted=$(job_field PreemptTime "$1")
    if [[ ! $state ]]; then
        echo unknown
    elif [[ ${restarts:-0} =~ ^[0-9]+$ ]] && ((${restarts:-0} > ${SLURM_RESTART_COUNT:-0})); then
        echo requeued
    elif [[ ${preempted:-None} != None || $state == *PREEMPTED* ]]; then
        echo preempted
    # The flags hide the state: the signal before the time limit makes it SIGNALING for a while.
    elif [[ $state == @(RUNNING|SIGNALING|RESIZING|CONFIGURING|SUSPENDED|STOPPED) ]]; then
        echo running
    elif [[ $state == *TIMEOUT* || $reason == TimeLimit ]]; then
        echo 'time limit'
    elif [[ ${reason:-None} != None ]]; then
        echo "$reason" # such as NodeDown
    else
        echo cancelled
    fi
}

# requeue_job: does what was decided. Prints nothing on success; Slurm ends this script soon after.
requeue_job() {
    local said
    if [[ $FATE == requeued ]]; then
        requeue_exclude
        return 0
    fi
    if [[ $DECISION == requeue ]]; then
        # Where a node died, Slurm may requeue the job in this very second and refuse ours.
        if said=$(timeout -k 1 60 scontrol requeue "$(requeue_name)" 2>&1) ||
            [[ $(requeue_fate "$(job_info || :)") == requeued ]]; then
            requeue_exclude
            return 0
        fi
        log_info "the requeue of job $DDP_JOB_ID was refused (${said//$'\n'/ }): submitting a successor"
    fi
    requeue_submit
}

# Only a pending job takes it. A node that the user asked for by name stays: without it the job would
# never start.
requeue_exclude() {
    local info excluded
    [[ $EXCLUDE ]] || return 0
    info=$(job_info) || :
    if [[ $(job_field ReqNodeList "$info") ]]; then
        log_info "job $DDP_JOB_ID may get $EXCLUDE again: it asks for nodes by name"
        return 0
    fi
    excluded=$(job_field ExcNodeList "$info") || :
    timeout -k 1 60 scontrol update JobId="$(requeue_name)" ExcNodeList="${excluded:+$excluded,}${EXCLUDE// /,}" ||
        log_info "job $DDP_JOB_ID may get $EXCLUDE again: Slurm does not take it out"
}

requeue_submit() {
    local options=() clean=() job
    mapfile -t options < <(requeue_options "$(job_info)")
    mapfile -t clean < <(requeue_environment)
    inherited_give_back
    if job=$(env "${clean[@]}" "${GIVEN_BACK[@]}" sbatch --parsable --export=ALL "${options[@]}" "$JOBS_DIR/prelaunch.sh" "${SUBMITTED[@]}"); then
        lock_release "${job%%;*}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}" # it owns the run from now on, though it has to wait
        log_info "job ${job%%;*} is submitted and carries on with ${DDP_RUN_DIR##*/} when job $DDP_JOB_ID has ended"
    else
        lock_release
        event_write decision decision '"fail"' reason '"the successor could not be submitted"' \
            restarts "$RESTARTS" idle "$IDLE" exclude null
        log_info "no successor could be submitted; to go on: start again with DDP_RUN_NAME=${DDP_RUN_DIR##*/}"
    fi
}

# requeue_options INFO: sbatch's options, a line each, for a job like this one.
requeue_options() {
    local pair value excluded extra
    printf '%s\n' "--dependency=afterany:$(requeue_name)" "--job-name=${SLURM_JOB_NAME:-ddp}" --open-mode=append \
        "--nodes=$NUM_NODES_ALLOCATED" # Slurm shows how many are left
    if [[ $(job_field Requeue "$1") == 0 ]]; then echo --no-requeue; fi
    for pair in $REQUEUE_FIELDS; do
        value=$(job_field "${pair%%=*}" "$1")
        if [[ $pair == *Tres* ]]; then value=$(requeue_tres "${pair%%=*}" "$value"); fi
        # An asterisk marks a key that Slurm chose itself.
        if [[ $pair == WCKey* ]]; then value=${value#\*}; fi
        if [[ $value && $value != 0 ]]; then echo "${pair#*=}=$value"; fi
    done
    # 0 is all memory of a node; beside --mem-per-gpu it stands for nothing.
    if [[ $(job_field MinMemoryNode "$1") == 0 && ! $(job_field MemPerTres "$1") ]]; then echo --mem=0; fi
    if [[ ${SLURM_NTASKS_PER_NODE-} ]]; then echo "--ntasks-per-node=$SLURM_NTASKS_PER_NODE"; fi
    if [[ ${SLURM_CPUS_PER_TASK-} ]]; then echo "--cpus-per-task=$SLURM_CPUS_PER_TASK"; fi
    if [[ ${SLURM_ARRAY_TASK_ID-} ]]; then echo "--array=$SLURM_ARRAY_TASK_ID"; fi
    # From 26.05 on OverSubscribe=NO holds for every job.
    value=$(job_field Exclusive "$1")
    if [[ ! $value && $(job_field OverSubscribe "$1") == NO ]]; then value=NODE; fi
    if [[ $value == NODE ]]; then echo --exclusive; fi
    if ((DDP_NO_KILL)); then echo --no-kill; fi
    excluded=$(job_field ExcNodeList "$1")
    value=$(job_field ReqNodeList "$1")
    if [[ $value && ! $EXCLUDE ]]; then echo "--nodelist=$value"; fi
    excluded+=${EXCLUDE:+${excluded:+,}${EXCLUDE// /,}}
    if [[ $excluded ]]; then echo "--exclude=$excluded"; fi
    for pair in WorkDir=--chdir StdOut=--output StdErr=--error Comment=--comment; do
        value=$(job_path "${pair%%=*}" "$1")
        if [[ $value && $value != '(null)' ]]; then echo "${pair#*=}=$value"; fi
    done
    read -ra extra <<<"${DDP_SBATCH_ARGS-}"
    if ((${#extra[@]})); then printf '%s\n' "${extra[@]}"; fi
}

# requeue_tres FIELD LIST: what the field's option takes of gpu:8, gres:gpu:8, gres/gpu:8 or gres/gpu=8,
# as Slurm writes it by version; what came from other options (cpu=7) stands there, too.
requeue_tres() {
    local item items=() kept=() IFS=,
    read -ra items <<<"$2"
    for item in "${items[@]}"; do
        if [[ $item == cpu=* || $item == mem=* || $item == license* ]]; then continue; fi
        item=${item#gres[:/]} item=${item//=/:}
        if [[ $1 != TresPerNode ]]; then item=${item#gpu:}; fi
        kept+=("$item")
    done
    printf '%s' "${kept[*]}"
}

# requeue_environment: what env takes so that the successor starts as this job did: without Slurm's
# variables of this job, without what this script chose, with the run's name, place and seed.
requeue_environment() {
    local name
    while IFS= read -r name; do
        if [[ $name != SLURM_CONF && $name != SLURM_SPANK_* ]]; then printf '%s\n' -u "$name"; fi
    done < <(compgen -e | grep -E '^(SLURM_|SLURMD_|ENVIRONMENT$)')
    for name in $DDP_CHOSEN DDP_CHOSEN; do printf '%s\n' -u "$name"; done
    printf '%s\n' "DDP_RUN_NAME=${DDP_RUN_DIR##*/}" "DDP_OUT=$DDP_OUT" "DDP_SEED=$DDP_SEED"
}
