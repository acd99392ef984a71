# shellcheck shell=bash disable=SC2153 # set by the other parts
# A command of the user's own: is it there, and does it bring a launcher of its own, as torchrun? Each of
# our ranks would run that once, and unless it is told of the others, each would train alone and nobody
# would notice.

# foreign_check COMMAND...: ends with the user's mistake, or warns where it may be one.
foreign_check() {
    local launcher option
    launcher=$(foreign_launcher "$@")
    if [[ ! $launcher ]] || ((WORLD_SIZE == 1)); then return 0; fi
    case $launcher in
        torchrun) option=--nnodes ;;
        accelerate) option=--num_machines ;;
        deepspeed) option=--no_ssh ;;
        *) option='' ;;
    esac
    if foreign_has_option "$option" "$@" || [[ $launcher == torchrun && ${PET_NNODES-} ]]; then return 0; fi
    # Without GPUs accelerate starts nothing of its own.
    if [[ $launcher == accelerate && ! ${SLURM_GPUS_ON_NODE-} ]] && (($(place_count_gpus) == 0)); then
        log_info "warning: $launcher starts ranks of its own, and each of $WORLD_SIZE ranks runs it: leave it and its options away (-- python train.py)"
        return 0
    fi
    die "a command after -- is one rank, found $launcher in each of $WORLD_SIZE ranks, where every one would train alone: leave $launcher and its options away (-- python train.py)${option:+, or tell it of the others ($option)}"
}

# foreign_check_program PROGRAM: where the ranks see what this script sees, it must be there. A login
# node, from which salloc starts ranks elsewhere, need not have it.
foreign_check_program() {
    if [[ $PLACE == host-image || ($PLACE == *-srun && ${ENVIRONMENT-} != BATCH) ]] || type -P -- "$1" >/dev/null; then
        return 0
    fi
    if [[ $1 == -* ]]; then
        die "the command after -- must begin with a program, found the option '$1': leave -- away for the trainer's own options"
    elif [[ $1 == *=* ]]; then
        die "the command after -- must begin with a program, found the setting '${1%%=*}=…': write -- env ${1%%=*}=…, or export it before"
    elif [[ -e $1 && $1 == */* ]]; then
        die "the command after -- must be a program that may be run, found that '$1' may not: chmod +x it, or name what runs it (-- python $1)"
    fi
    die "the command after -- must be a program, found none named '$1' on $DDP_NODE: correct it, or extend PATH"
}

# foreign_launcher COMMAND...: prints whose launcher it is, nothing for any other command.
foreign_launcher() {
    local word
    case ${1##*/} in
        torchrun) echo torchrun ;;
        accelerate) if [[ ${2-} == launch ]]; then echo accelerate; fi ;;
        deepspeed | mpirun | mpiexec | horovodrun) echo "${1##*/}" ;;
        python*)
            shift
            for word in "$@"; do
                case $word in
                    torch.distributed.run | torch.distributed.launch) echo torchrun && return 0 ;;
                    accelerate.commands.launch) echo accelerate && return 0 ;;
                    -*) ;;
                    *) return 0 ;; # the script, or another module: what follows is theirs
                esac
            done
            ;;
    esac
}

# foreign_has_option OPTION COMMAND...: with _ or - within, as these programs take them.
foreign_has_option() {
    local wanted=${1//_/-} word
    shift
    for word in "$@"; do
        word=${word%%=*}
        if [[ ${word//_/-} == "$wanted" ]]; then return 0; fi
    done
    return 1
}
