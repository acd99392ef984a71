#!/usr/bin/env bash
# Dependent jobs that carry one run on: each starts where the one before it stopped.
#
#   jobs/chain.sh NAME COUNT [sbatch options] [-- trainer options, or a command]
#
# A link starts when the one before it ended without finishing; once the run has finished, Slurm
# removes the links that are left. Prints a job id a line.
set -Eeuo pipefail

# shellcheck source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

main() {
    local count=${2-} link job before='' options words dependency=()
    help_if_asked "${1-}" "${BASH_SOURCE[0]}"
    [[ ${1-} =~ ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$ ]] ||
        die "the first argument must name the run with letters, digits, '.', '_' and '-'; found '${1-}'; see jobs/chain.sh --help"
    [[ $count =~ ^[1-9][0-9]{0,2}$ ]] ||
        die "the second argument must be the number of jobs, from 1 to 999; found '$count'; write for example jobs/chain.sh $1 5"
    export DDP_RUN_NAME=$1
    export DDP_REQUEUE=0 # the next link is the successor
    shift 2
    split_words "$@"
    command -v sbatch >/dev/null || die "a chain needs Slurm's sbatch; found none; run jobs/prelaunch.sh with DDP_RUN_NAME=$DDP_RUN_NAME again and again"
    for ((link = 0; link < count; link++)); do
        # On all of them: a link that Slurm removed has not finished either, and would let the next one run.
        if [[ $before ]]; then dependency=("--dependency=afternotok$before" --kill-on-invalid-dep=yes); fi
        # --resume auto is the trainer's default under a run name of its own.
        job=$(sbatch --parsable --export=ALL --no-requeue "${options[@]}" "${dependency[@]}" "$JOBS_DIR/prelaunch.sh" "${words[@]}") ||
            die "sbatch must take each job of the chain; found job $((link + 1)) refused; see its message above (those before it wait, scancel ends them)"
        job=${job%%;*} # with several clusters: id;cluster
        before+=:$job
        echo "$job"
    done
}

main "$@"
