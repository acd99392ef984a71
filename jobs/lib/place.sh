# shellcheck shell=bash disable=SC2034,SC2100 # set here, read by the scripts; a-b is a name
# Where the batch script runs, and so where and how the ranks run: the five places.

readonly INTERACTIVE_STEP=4294967290 # slurm.h: SLURM_INTERACTIVE_STEP

# place_detect ARGUMENTS...: sets UNDER_SLURM, IN_CONTAINER, INTERACTIVE, SUBMIT_DIR, JOB_ID, PLACE and the counts.
place_detect() {
    place_forget_outer_job
    UNDER_SLURM=0 IN_CONTAINER=0 INTERACTIVE=0 HAVE_CLIENT=0
    if [[ ${SLURM_JOB_ID-} ]]; then UNDER_SLURM=1; fi
    place_check_slurm
    if place_is_container; then IN_CONTAINER=1; fi
    # A directory for the job that the host's prolog made is not there.
    if ((IN_CONTAINER)) && [[ ! -d ${TMPDIR:-/tmp} ]]; then unset TMPDIR; fi
    # sbatch alone says BATCH; srun --pty and salloc leave it out.
    if ((UNDER_SLURM)) && [[ ${ENVIRONMENT-} != BATCH || ${SLURM_PTY_PORT-} ]]; then INTERACTIVE=1; fi
    SUBMIT_DIR=${SLURM_SUBMIT_DIR:-$PWD}
    place_name_job
    place_choose "$@"
    NUM_NODES_ALLOCATED=$NUM_NODES
    place_count_ranks
    NUM_NODES_WANTED=$NUM_NODES
}

# sbatch hands a job the variables of the job or shell that it is called in, and Slurm overwrites only
# those that the new one has: the rest would speak of another job.
place_forget_outer_job() {
    local info pair
    # Slurm sets the type for a step alone: a binding without one is the user's wish.
    if [[ -v SLURM_CPU_BIND_TYPE ]]; then unset SLURM_CPU_BIND "${!SLURM_CPU_BIND_@}"; fi
    if [[ -v SLURM_MEM_BIND_TYPE ]]; then unset SLURM_MEM_BIND "${!SLURM_MEM_BIND_@}"; fi
    [[ ${SLURM_JOB_ID-} && ${0##*/} == slurm_script ]] || return 0
    unset "${!SLURM_STEP_@}" SLURM_STEPID "${!SLURM_PTY_@}"
    info=$(timeout -k 1 30 scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | tail -n 1) || :
    [[ $info ]] || return 0
    if [[ $info != *' ArrayJobId='* ]]; then unset "${!SLURM_ARRAY_@}"; fi
    for pair in TresPerJob=SLURM_GPUS TresPerNode=SLURM_GPUS_PER_NODE TresPerSocket=SLURM_GPUS_PER_SOCKET \
        TresPerTask=SLURM_GPUS_PER_TASK TresPerTask=SLURM_TRES_PER_TASK CpusPerTres=SLURM_CPUS_PER_GPU \
        MemPerTres=SLURM_MEM_PER_GPU MinMemoryCPU=SLURM_MEM_PER_CPU MinMemoryNode=SLURM_MEM_PER_NODE; do
        if [[ $info != *" ${pair%%=*}="* ]]; then unset "${pair#*=}"; fi
    done
}

# Numbers of Slurm's that we reckon with: half an environment, copied from elsewhere, is told at once.
place_check_slurm() {
    local name
    ((UNDER_SLURM)) || return 0
    for name in SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_NTASKS SLURM_NTASKS_PER_NODE \
        SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE; do
        [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] ||
            die "$name must be a whole number from 1 on, as Slurm sets it, found '${!name}': start with sbatch, salloc or srun, or unset SLURM_JOB_ID to run without Slurm"
    done
}

# Pyxis leaves its options in the environment of a batch script it put into a container; our image
# says where it keeps the project.
place_is_container() {
    [[ ${SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image-} ]] ||
        [[ ${DDP_HOME-} && -d $DDP_HOME/jobs ]]
}

place_name_job() {
    JOB_ID_ORIGIN='Slurm'
    if [[ ${SLURM_ARRAY_JOB_ID-} && ${SLURM_ARRAY_TASK_ID-} ]]; then
        JOB_ID=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}
    elif ((UNDER_SLURM)); then
        JOB_ID=$SLURM_JOB_ID
    else
        JOB_ID_ORIGIN='no Slurm: time and process'
        JOB_ID=local-$(date -u +%Y%m%dT%H%M%S)-$$
    fi
    unset DDP_JOB_ID # an outer job's, if any
    DDP_NODE=$(uname -n)
    DDP_NODE=${SLURMD_NODENAME:-${DDP_NODE%%.*}} # as Slurm names it, which may have dots
}

# A client counts only if the controller answers it: in a container, its plugins, configuration and
# munge socket may be missing although the program is there.
place_has_client() {
    command -v srun >/dev/null && command -v scontrol >/dev/null && JOB_INFO=$(job_info)
}

# place_be_owner ARGUMENTS...: in a container that is remapped to root, Slurm's clients say that they are
# root, and Slurm takes no step and no job from them. In a user namespace of its own this script, which
# begins again, and what it starts are the job's user. Fails where none can be made.
place_be_owner() {
    local owner namespace
    owner="$(job_field UserId "$JOB_INFO") $(job_field GroupId "$JOB_INFO")"
    if [[ ! $owner =~ \(([0-9]+)\)\ .*\(([0-9]+)\)$ ]] || ((BASH_REMATCH[1] == EUID)); then return 0; fi
    namespace=(unshare --user --map-user="${BASH_REMATCH[1]}" --map-group="${BASH_REMATCH[2]}")
    if "${namespace[@]}" true; then
        inherited_give_back
        exec env "${GIVEN_BACK[@]}" "${namespace[@]}" "$BASH" "$0" "$@"
    fi
    HAVE_CLIENT=0
    log_info "Slurm's client must run as the job's user ${owner% *}, found user $EUID and no namespace to change it (util-linux 2.34 or later in the image?): add --no-container-remap-root, or PYXIS_CONTAINER_REMAP_ROOT=0"
    return 1
}

place_choose() {
    [[ ! ${SLURM_HET_SIZE-} ]] || die "a heterogeneous job has several allocations, and ranks can use one, found $SLURM_HET_SIZE: submit without --het-group"
    NUM_NODES=1 JOB_INFO=''
    if ((! UNDER_SLURM)); then
        if ((IN_CONTAINER)); then PLACE=container-local; else PLACE=bare-local; fi
        [[ ! ${DDP_IMAGE-} ]] || die "DDP_IMAGE needs Slurm with Pyxis to start ranks in containers, found no Slurm job: submit with sbatch, or use docker run, or unset DDP_IMAGE"
        return 0
    fi
    NUM_NODES=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
    if place_has_client; then HAVE_CLIENT=1; fi
    if ((IN_CONTAINER && HAVE_CLIENT)) && place_hands_image_on && place_be_owner "$@"; then
        PLACE=container-srun
    elif ((IN_CONTAINER)); then
        PLACE=container-local
        ((NUM_NODES == 1 || ! HAVE_CLIENT)) || place_die_no_image
        ((NUM_NODES == 1)) || place_die_no_way
    elif ((HAVE_CLIENT)) && [[ ${DDP_IMAGE-} ]]; then
        PLACE=host-image
        place_check_image
    elif ((HAVE_CLIENT)); then
        PLACE=bare-srun
    else
        ((NUM_NODES == 1)) || place_die_no_way
        PLACE=bare-local
    fi
    if ((IN_CONTAINER)) && [[ ${DDP_IMAGE-} ]]; then
        log_info "warning: DDP_IMAGE is ignored, the batch script already runs in a container"
    fi
}

# Kubernetes, mpirun and SageMaker start this script once a pod, a rank or a host, and tell it of the
# others: each of these would train alone, and nobody would notice.
place_refuse_other_launchers() {
    local name
    [[ ! ${SLURM_JOB_ID-} ]] || return 0
    for name in WORLD_SIZE PET_NNODES OMPI_COMM_WORLD_SIZE PMI_SIZE MV2_COMM_WORLD_SIZE SM_HOSTS; do
        if [[ ${!name-} =~ (^|:)0*([2-9]|[1-9][0-9]+)(:|$) || ($name == SM_HOSTS && ${!name-} == *,*) ]]; then
            die "several ranks or nodes need Slurm or torchrun, found no Slurm job and $name=${!name}, by which this script would train alone: start jobs/launcher.sh once a rank instead, with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as torchrun does (torchrun … --no-python jobs/launcher.sh); to train on this machine alone unset $name"
        fi
    done
}

# Without it srun would start the ranks on the bare machines.
place_hands_image_on() {
    local pyxis=SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container name
    for name in "${pyxis}_image" "${pyxis}_name" PYXIS_CONTAINER_IMAGE PYXIS_CONTAINER_NAME; do
        if [[ ${!name-} ]]; then return 0; fi
    done
    return 1
}

place_die_no_image() {
    die "the ranks of $NUM_NODES nodes must start in the image, found that srun in this container does not know it (sbatch hands it on, srun does not): start the shell with DDP_IMAGE=./ddp.sqsh jobs/interactive.sh"
}

place_die_no_way() {
    log_info "the ranks of $NUM_NODES nodes need srun, and no Slurm client works here; paste one of these:"
    log_info "    eval \"\$(container/pyxis_env.sh)\" && sbatch --nodes=$NUM_NODES --container-image=./ddp.sqsh jobs/prelaunch.sh   # on the submit host: mounts the client"
    log_info "    DDP_IMAGE=./ddp.sqsh sbatch --nodes=$NUM_NODES jobs/prelaunch.sh   # the script on the host, the ranks in containers"
    exit "$EXIT_USAGE"
}

place_check_image() {
    if [[ $DDP_IMAGE == [./]* ]]; then
        [[ -r $DDP_IMAGE ]] || die "DDP_IMAGE must be a readable squashfs file, found nothing at '$DDP_IMAGE': make it with container/to_squashfs.sh ddp ddp.sqsh"
        [[ $(head -c 4 -- "$DDP_IMAGE" 2>/dev/null | tr -d '\0') == hsqs ]] ||
            die "DDP_IMAGE must be a squashfs file, found something else at '$DDP_IMAGE': make it with container/to_squashfs.sh ddp ddp.sqsh"
    elif [[ -e $DDP_IMAGE ]]; then
        die "DDP_IMAGE must begin with / or . (else Pyxis takes it for a registry image), found '$DDP_IMAGE': write ./$DDP_IMAGE"
    fi
    srun --help 2>&1 | grep -e --container-image >/dev/null || # with -q, srun would fail of a closed pipe
        die "DDP_IMAGE needs the Pyxis plugin, found an srun without --container-image: ask the admins for Pyxis, or unset DDP_IMAGE"
}

# place_count_ranks: NUM_TASKS launchers of this step, NUM_LOCAL_TASKS of them and NUM_LOCAL_RANKS
# ranks on each node, WORLD_SIZE ranks in all.
place_count_ranks() {
    local ranks=${DDP_NPROC_PER_NODE-}
    [[ ! ${DDP_NPROC_PER_NODE+set} ]] || require_integer DDP_NPROC_PER_NODE "$ranks" 1 1024
    if [[ ! $ranks ]] && place_has_plain_gpus; then
        DDP_NPROC_PER_NODE=$SLURM_GPUS_ON_NODE ranks=$SLURM_GPUS_ON_NODE
        setting_note DDP_NPROC_PER_NODE 'a rank per GPU: no tasks were asked for'
    fi
    if [[ $PLACE == *-local ]]; then
        place_count_local_ranks "$ranks"
        return 0
    fi
    NUM_TASKS=$((NUM_NODES * ${SLURM_NTASKS_PER_NODE:-1}))
    # Inside a step (srun --pty) the count is that of the shell's own step, but for the step in which
    # salloc starts its shell where a site has it so.
    if [[ ${SLURM_NTASKS-} && (! ${SLURM_STEP_ID-} || $SLURM_STEP_ID == "$INTERACTIVE_STEP") ]]; then
        NUM_TASKS=$SLURM_NTASKS
    fi
    NUM_LOCAL_TASKS=$(((NUM_TASKS + NUM_NODES - 1) / NUM_NODES))
    NUM_LOCAL_RANKS=${ranks:-$NUM_LOCAL_TASKS}
    if ((NUM_TASKS != NUM_NODES && NUM_LOCAL_RANKS != NUM_LOCAL_TASKS)); then
        die "DDP_NPROC_PER_NODE must agree with the tasks per node unless there is one, found $ranks and $NUM_LOCAL_TASKS: unset it, or give --ntasks-per-node=1"
    fi
    place_warn_gpus
    place_keep_spare
    WORLD_SIZE=$((NUM_LOCAL_RANKS == NUM_LOCAL_TASKS ? NUM_TASKS : NUM_NODES * NUM_LOCAL_RANKS))
}

# place_has_plain_gpus: a job that asks for GPUs on each node and says nothing of tasks, the plainest form
# there is. Who gives a launcher of his own has one task a node to start it in.
place_has_plain_gpus() {
    [[ ! ${SLURM_NTASKS-} && ! ${SLURM_NTASKS_PER_NODE-} && ! ${SLURM_STEP_ID-} ]] || return 1
    [[ ${SLURM_GPUS_ON_NODE-} =~ ^([2-9]|[1-9][0-9]{1,2})$ ]] || return 1
    # Of a number for the whole job each node may have another share.
    ((NUM_NODES == 1 || ${SLURM_GPUS:-0} == 0 || SLURM_GPUS == NUM_NODES * SLURM_GPUS_ON_NODE)) || return 1
    ((! IS_OWN_COMMAND)) || [[ ! $(foreign_launcher "${ARGUMENTS[@]:1}") ]]
}

# place_warn_gpus: of a forgotten option, by which our ranks have no GPU, or GPUs no rank.
place_warn_gpus() {
    local gpus=${SLURM_GPUS_ON_NODE-}
    if ((IS_OWN_COMMAND)); then return 0; fi
    if [[ ! $gpus && ! ${SLURM_JOB_GPUS-} ]] &&
        [[ $(timeout -k 1 20 scontrol --oneliner show node "$DDP_NODE" 2>/dev/null) =~ \ Gres=[^\ ]*gpu ]]; then
        log_info "warning: this job has no GPU, on a node that has some: give --gpus-per-node to train on them"
    fi
    if [[ $gpus =~ ^[0-9]{1,3}$ ]] && ((gpus > NUM_LOCAL_RANKS)); then
        log_info "warning: $gpus GPUs on a node for $NUM_LOCAL_RANKS of our ranks: give --ntasks-per-node=$gpus, or fewer GPUs"
    fi
}

# place_keep_spare: nodes of the allocation that stay idle until another one is lost.
place_keep_spare() {
    local spare=${DDP_SPARE_NODES:-0}
    require_integer DDP_SPARE_NODES "$spare" 0 $((NUM_NODES - 1))
    ((spare)) || return 0
    ((NUM_TASKS == NUM_NODES * NUM_LOCAL_TASKS)) ||
        die "DDP_SPARE_NODES needs as many tasks on every node, found $NUM_TASKS on $NUM_NODES: give --ntasks-per-node, or unset it"
    NUM_NODES=$((NUM_NODES - spare))
    NUM_TASKS=$((NUM_NODES * NUM_LOCAL_TASKS))
}

place_count_local_ranks() {
    local gpus
    gpus=$(place_count_gpus)
    if ((UNDER_SLURM)); then gpus=${SLURM_NTASKS:-${SLURM_NTASKS_PER_NODE:-1}}; fi
    NUM_LOCAL_RANKS=${1:-$((gpus > 0 ? gpus : 1))}
    NUM_TASKS=$NUM_LOCAL_RANKS NUM_LOCAL_TASKS=$NUM_LOCAL_RANKS WORLD_SIZE=$NUM_LOCAL_RANKS
}

place_count_gpus() {
    local devices=()
    if [[ -v CUDA_VISIBLE_DEVICES ]]; then
        IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
    else
        mapfile -t devices < <(compgen -G '/dev/nvidia[0-9]*' || :)
    fi
    echo "${#devices[@]}"
}

# place_warn_unnamed_volume MOUNT: docker gives a volume that nobody named 64 digits for a name, and
# removes it with the container (--rm), or leaves it where nobody looks.
place_warn_unnamed_volume() {
    local root target
    while read -r _ _ _ root target _; do
        if [[ $target == "$1" && $root =~ /volumes/[0-9a-f]{64}/_data$ ]]; then
            log_info "warning: nothing of the host is mounted at $1: docker run --rm removes all that this run writes when it ends; to keep it: docker run -v \"\$PWD/out:$1\""
        fi
    done </proc/self/mountinfo
}

# place_check_output DIRECTORY: what a container writes into its own file system is gone at its end.
place_check_output() {
    local directory=$1 kind mount
    ((IN_CONTAINER)) || return 0
    while [[ ! -d $directory ]]; do directory=$(dirname -- "$directory"); done
    read -r kind mount < <(df --output=fstype,target -- "$directory" | tail -n 1)
    if [[ $mount == / || $kind == tmpfs ]]; then
        die "the output must outlive the container, found $1 on the container's own file system: add --container-mounts=./:/submit --container-env=DDP_OUT with DDP_OUT=/submit/out, or run eval \"\$(container/pyxis_env.sh)\" before sbatch (docker: -v \"\$PWD/out:/out\")"
    fi
    place_warn_unnamed_volume "$mount"
}
