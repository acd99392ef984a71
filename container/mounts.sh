# shellcheck shell=bash
# What Pyxis can be told about a mount. Sourced by slurm_mounts.sh and pyxis_env.sh, which set LOG_NAME.

log() {
    printf '%s: %s\n' "$LOG_NAME" "$*" >&2
}

die() {
    log "$@"
    exit 64
}

# join_unique LIST ITEM...: prints the comma-separated list with what it lacks of the items.
join_unique() {
    local list=$1 item
    shift
    for item in "$@"; do
        if [[ $item && ",$list," != *",$item,"* ]]; then list+=${list:+,}$item; fi
    done
    printf '%s' "$list"
}
