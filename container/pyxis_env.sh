#!/usr/bin/env bash
# Prints what makes the plain command work on several nodes:
#
#   eval "$(container/pyxis_env.sh)"
#   sbatch --container-image=./ddp.sqsh jobs/prelaunch.sh
#
# The submit directory and the output directory are mounted at their own paths, Slurm's client with
# them; the names of your settings are listed, so that they win over the image's. Mounts of your own:
# DDP_MOUNTS=/data:/data. For jobs on one node, --no-client leaves Slurm's client out.
unset CDPATH POSIXLY_CORRECT BASH_ENV
set +o posix
set -Eeuo pipefail
shopt -s inherit_errexit
IFS=$' \t\n'

LOG_NAME=pyxis_env
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=container/mounts.sh
. "$HERE/mounts.sh"
# shellcheck source=jobs/lib/settings.sh
. "$HERE/../jobs/lib/settings.sh"

# Pyxis reads its variables into a buffer of PATH_MAX, and silently takes none that is longer.
readonly MAX_LENGTH=4095

# export_line NAME VALUE: in quotes that any shell of Bourne's family reads.
export_line() {
    ((${#2} <= MAX_LENGTH)) ||
        die "$1 must be at most $MAX_LENGTH characters for Pyxis to read it, found ${#2}: give the mounts with sbatch --container-mounts instead"
    printf "export %s='%s'\n" "$1" "${2//\'/\'\\\'\'}"
}

resolve_output() {
    OUT=${DDP_OUT:-$SUBMIT/out}
    [[ $OUT == /* ]] || OUT=$SUBMIT/$OUT
    check_mountable "$OUT"
}

mounts() {
    local client=() extra entries=("$SUBMIT:$SUBMIT")
    [[ $OUT == "$SUBMIT"/* ]] || entries+=("$OUT:$OUT")
    extra=$(extra_mounts)
    if [[ $extra ]]; then mapfile -t -O "${#entries[@]}" entries <<<"$extra"; fi
    if ((WITH_CLIENT)); then
        extra=$("$HERE/slurm_mounts.sh")
        IFS=, read -ra client <<<"$extra"
    fi
    join_unique "${PYXIS_CONTAINER_MOUNTS-}" "${entries[@]}" "${client[@]}"
}

# Enroot reads a variable from one line.
names() {
    local name list=(DDP_OUT)
    while IFS= read -r name; do
        if [[ ! $name ]]; then continue; fi
        if [[ ${!name} == *$'\n'* ]]; then
            log "warning: $name is not forwarded, its value has several lines"
        else
            list+=("$name")
        fi
    done < <(forwarded_names)
    join_unique "${PYXIS_CONTAINER_ENV-}" "${list[@]}"
}

main() {
    local all
    WITH_CLIENT=1 OUT=''
    case ${1-} in
        '') ;;
        --no-client) WITH_CLIENT=0 ;;
        *) die "the option must be --no-client, found '$1': settings come from the environment" ;;
    esac
    SUBMIT=$(pwd -P)
    check_mountable "$SUBMIT"
    resolve_output
    all=$(lines)
    # A mount's source must exist, and this one is ours to make.
    mkdir -p -- "$OUT" || die "DDP_OUT must be a directory you can make, found '$OUT': choose another"
    printf '%s\n' "$all"
}

# All lines or none: half a setting would lose a job's output.
lines() {
    local value
    value=$(mounts)
    export_line DDP_OUT "$OUT"
    export_line PYXIS_CONTAINER_MOUNTS "$value"
    export_line PYXIS_CONTAINER_WORKDIR "${PYXIS_CONTAINER_WORKDIR:-$SUBMIT}"
    value=$(names)
    export_line PYXIS_CONTAINER_ENV "$value"
}

main "$@"
