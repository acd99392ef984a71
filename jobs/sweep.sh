#!/usr/bin/env bash
# A job array over a small grid file: one task for every combination of its lines.
#
#   jobs/sweep.sh GRID [sbatch options] [-- trainer options, or a command]
#
# A line of GRID is an option and its values; # begins a comment:
#   --lr 0.01 0.1
#   --seed 1 2 3
# gives six tasks. The points lie in $DDP_OUT/sweep-<time>.txt, one line a task.
set -Eeuo pipefail

# shellcheck source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# expand_grid FILE: prints every combination, the first line's values changing slowest.
expand_grid() {
    local points=('') grown line option values value point seen=' '
    while IFS= read -r line || [[ $line ]]; do
        line=${line%$'\r'}
        read -r option values <<<"${line%%#*}"
        [[ $option ]] || continue
        [[ $seen != *" $option "* ]] || die "an option of the grid must have one line; found a second one for $option; write all its values in one"
        seen+="$option "
        [[ $option == --* && $option != *=* && $values ]] ||
            die "a line of the grid must be an option and its values; found '$line'; write for example --lr 0.01 0.1"
        grown=()
        for point in "${points[@]}"; do
            for value in $values; do grown+=("$point$option $value "); done
        done
        points=("${grown[@]}")
    done <"$1"
    printf '%s\n' "${points[@]}"
}

main() {
    local grid=${1-} file points count directory made=() options words
    help_if_asked "$grid" "${BASH_SOURCE[0]}"
    [[ -r $grid && -f $grid ]] || die "the first argument must be a readable grid file; found '$grid'; see examples/sweep.grid"
    shift
    points=$(set -f && expand_grid "$grid")
    [[ $points ]] || die "the grid must have at least one line with values; found none in '$grid'; see examples/sweep.grid"
    split_words "$@"
    command -v sbatch >/dev/null || die "a sweep needs Slurm's sbatch; found none; run jobs/prelaunch.sh once per point"
    resolve_out # by this directory: --chdir is for the jobs
    directory=$OUT
    while [[ ! -e $directory ]]; do
        made+=("$directory")
        directory=$(dirname -- "$directory")
    done
    make_out
    file=$OUT/sweep-$(date -u +%Y%m%dT%H%M%S)-$$.txt
    printf '%s\n' "$points" >"$file"
    count=$(wc -l <"$file")
    log_info "$count point$( ((count == 1)) || echo s) in $file"
    # Commas in a path would end an --export list, so the variables travel in the environment.
    if ! DDP_OUT=$OUT DDP_SWEEP_FILE=$file sbatch --export=ALL --job-name=ddp-sweep --array="1-$count" "${options[@]}" \
        "$JOBS_DIR/prelaunch.sh" "${words[@]}"; then
        rm -f -d -- "$file" "${made[@]}" 2>/dev/null || : # unless others wrote there, too
        die "sbatch must take the array; found it refused; see its message above (the points file is removed)"
    fi
}

main "$@"
