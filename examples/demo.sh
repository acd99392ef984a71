#!/usr/bin/env bash
# The main job on the digits that ship with the package: 2 ranks, a monitor, a trained model.
# Where a Slurm controller answers it submits and follows a batch job, elsewhere it runs in place.
#
#   examples/demo.sh [trainer options]
set -Eeuo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export DDP_OUT=${DDP_OUT:-$PWD/out} DDP_MONITOR_INTERVAL=${DDP_MONITOR_INTERVAL:-1}

has_controller() {
    command -v sbatch scontrol >/dev/null && timeout 10 scontrol ping 2>/dev/null | grep -q 'is UP'
}

in_slurm() {
    local job log ended
    mkdir -p -- "$DDP_OUT" || exit 64
    job=$(sbatch --parsable --ntasks=2 --output="$DDP_OUT/slurm-%j.out" jobs/prelaunch.sh "$@")
    job=${job%%;*}
    log=$DDP_OUT/slurm-$job.out
    RUN_DIR=$DDP_OUT/slurm-$job
    echo "submitted job $job; following $log"
    touch -- "$log"
    tail -n +1 -s 0.2 -f -- "$log" &
    trap 'kill "$!" 2>/dev/null || :' EXIT
    while [[ $(squeue --noheader --jobs="$job" --format=%T 2>/dev/null) =~ PENDING|CONFIGURING|RUNNING|COMPLETING ]]; do
        sleep 0.5
    done
    ended=$(scontrol --oneliner show job "$job" | sed -n 's/.* ExitCode=\([0-9]*:[0-9]*\).*/\1/p')
    CODE=$((${ended#*:} ? 128 + ${ended#*:} : ${ended%:*})) # code:signal
}

in_place() {
    export DDP_RUN_NAME=${DDP_RUN_NAME:-demo-$(date +%Y%m%d-%H%M%S)-$$}
    RUN_DIR=$DDP_OUT/$DDP_RUN_NAME
    CODE=0
    DDP_NPROC_PER_NODE=${DDP_NPROC_PER_NODE:-2} jobs/prelaunch.sh "$@" || CODE=$?
}

main() {
    local job logs
    if has_controller; then in_slurm "$@"; else in_place "$@"; fi
    if [[ ! -e $RUN_DIR/events.jsonl ]]; then exit "$CODE"; fi # it ended before it began, and reported why
    job=$(sed -n 's/.*"event": "start".*"job_id": "\([^"]*\)".*/\1/p' "$RUN_DIR/events.jsonl" | tail -n 1)
    logs=("$DDP_OUT/slurm-$job."*.gutil) # none with DDP_MONITOR=0
    echo
    if [[ -e ${logs[0]} ]]; then .venv/bin/python -m monitor report "${logs[@]}"; fi
    printf '\nThe run lies in %s:\n' "$RUN_DIR"
    printf '  %-16s %s\n' run.json 'the run record' events.jsonl 'who did what, when' \
        metrics.jsonl 'loss, accuracy, samples/s' logs/ "each rank's own output" checkpoints/ 'the model'
    printf 'and beside it, a node each, the samples of its GPUs and host: %s\n' "$DDP_OUT/slurm-$job.<host>.gutil"
    exit "$CODE"
}

main "$@"
