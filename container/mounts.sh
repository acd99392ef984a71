# shellcheck shell=bash
# What slurm_mounts.sh and pyxis_env.sh share, which source it first: messages, and what Pyxis accepts
# about a mount.
unset CDPATH POSIXLY_CORRECT BASH_ENV
set +o posix
shopt -s inherit_errexit

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/common.sh
. "$HERE/../jobs/common.sh"
# shellcheck source=container/plugstack.sh
. "$HERE/plugstack.sh"

# join_unique LIST ITEM...: prints the comma-separated list with what it lacks of the items.
join_unique() {
    local list=$1 item
    shift
    for item in "$@"; do
        if [[ $item && ",$list," != *",$item,"* ]]; then list+=${list:+,}$item; fi
    done
    printf '%s' "$list"
}

# check_mountable PATH: Pyxis separates mounts by commas and their parts by colons, and writes them
# between double quotes into a script that Enroot's bash runs.
check_mountable() {
    case $1 in
        *[,:\$\`\"\\]* | *$'\n'*)
            die "a path to mount must hold none of , : \$ \` \" \\ and newlines; found $(printf '%q' "$1"); rename it, or work from another directory"
            ;;
    esac
}

# extra_mounts: prints DDP_MOUNTS an entry a line. Pyxis says once a task what it does not understand,
# and sbatch then goes on without any mount.
extra_mounts() {
    local entry part entries=()
    mapfile -d , -t entries < <(printf '%s' "${DDP_MOUNTS-}")
    for entry in "${entries[@]}"; do
        [[ $entry =~ ^(([./][^:]*|tmpfs|umount)(:[./][^:]*(:.*)?)?)?$ ]] ||
            die "DDP_MOUNTS must be SOURCE:TARGET, with commas between several, each beginning with / or .; found '$entry'; write for example DDP_MOUNTS=/data:/data"
        while IFS= read -r -d : part; do check_mountable "$part"; done <<<"$entry:"
        if [[ $entry ]]; then printf '%s\n' "$entry"; fi
    done
}

# forwarded_names: prints the exported names that a rank in an image must see as the job sees them.
forwarded_names() {
    local list=$HERE/../jobs/forwarded.txt
    compgen -e | grep -E "^($(grep '^[A-Z]' "$list" | paste -sd '|'))" |
        grep -vxFf <(sed -n 's/^!//p' "$list") || :
}
