#!/usr/bin/env bash
# A shell on a compute node, in the image if there is one, in which jobs/prelaunch.sh just runs.
#
#   [DDP_IMAGE=./ddp.sqsh] jobs/interactive.sh [srun options]      e.g. --nodes=2 --gpus-per-node=8
set -Eeuo pipefail

# shellcheck source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=find_python.sh
source "$JOBS_DIR/find_python.sh"

# Where there is a Python, an image that Pyxis would refuse is refused before Slurm is asked for a node.
check_image() {
    local python
    python=$(find_python "$JOBS_DIR/..") || return 0
    "$python" -I -S -X utf8 "$JOBS_DIR/backends/check_image.py"
}

main() {
    local lines version
    help_if_asked "${1-}" "${BASH_SOURCE[0]}"
    command -v srun >/dev/null || die "an interactive session needs Slurm's srun; found none; run jobs/prelaunch.sh here instead"
    if [[ ${DDP_IMAGE-} ]]; then
        check_image
        # The submit directory and the Slurm client must be visible in the container.
        lines=$("$JOBS_DIR/../container/pyxis_env.sh" --step) # on its own: within eval its failure would be lost
        eval "$lines"
        # Not --container-image: what srun was given, an srun within does not know, unlike sbatch's.
        export SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image=$DDP_IMAGE
        unset DDP_IMAGE
    fi
    version=$(srun --version)
    version=${version##* }
    [[ ! $version =~ ^(20|21)\. ]] ||
        die "a step within a shell's own needs Slurm 22.05 or later; found $version; run salloc $* jobs/prelaunch.sh"
    exec srun --job-name=ddp-interactive --pty "$@" bash # nothing to clean up here: no trap to lose
}

main "$@"
