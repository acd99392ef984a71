#!/usr/bin/env bash
# Prints the --container-mounts= value with which srun and scontrol work inside a container of this
# host: programs, libraries, plugins, configuration, munge socket. What is missing is reported on stderr.
#
#   sbatch --container-image=./ddp.sqsh --container-mounts="./:/submit,$(container/slurm_mounts.sh)" …
#
# The programs are this host's and run with the image's C library: it must not be the older one.
set -Eeuo pipefail

# shellcheck source=container/mounts.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/mounts.sh"

readonly PROGRAMS=(srun scontrol sbatch squeue scancel sinfo sacct)
# Every Debian or Ubuntu image with a Python has these, and its own programs need its own.
readonly OF_THE_IMAGE='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|gcc_s|stdc\+\+|z|lz4|lzma|bz2|zstd|crypto|ssl|uuid|selinux|pcre2-8|cap|audit|cap-ng|pam|tinfo|ncurses|crypt|systemd))\.so'
MOUNTS=()

# add_mount SOURCE [TARGET]
add_mount() {
    check_mountable "$1"
    check_mountable "${2-$1}"
    MOUNTS+=("$1:${2-$1}")
}

# The image's PATH beats the job's, and /usr/bin is on every one.
add_programs() {
    local program path
    for program in "${PROGRAMS[@]}"; do
        if path=$(type -P "$program"); then
            path=$(realpath -- "$path")
            add_mount "$path" "/usr/bin/$program"
            add_libraries "$path"
        elif [[ $program == srun || $program == scontrol ]]; then
            die "Slurm's programs must be on this host; found no $program on PATH; run this where sbatch works"
        fi
    done
}

# add_libraries OBJECT: what an image lacks, where its loader looks. Slurm's own are found through
# the path compiled into the programs, and come with the plugin directory.
add_libraries() {
    local name path
    while read -r name path; do
        if [[ $path == 'not found' ]]; then
            die "every library of $1 must be on this host; found no $name; is Slurm installed whole?"
        elif [[ $name == libslurm* ]]; then
            SLURM_LIBRARIES=$(dirname -- "$path")
        elif [[ ! $name =~ $OF_THE_IMAGE ]]; then
            # Where the loader of a Debian or Ubuntu image looks, whatever this host is.
            add_mount "$(realpath -- "$path")" "/usr/lib/$(uname -m)-linux-gnu/$name"
        fi
    done < <(ldd "$1" 2>/dev/null | sed -nE 's/^[[:space:]]*([^ ]+) => (not found|[^ (]+).*/\1 \2/p')
}

# add_plugins: PluginDir may be a list; SLURM_LIBRARIES is where packages put it by default.
add_plugins() {
    local directories directory plugin
    directories=$(conf_value PluginDir)
    IFS=: read -ra directories <<<"${directories:-${SLURM_LIBRARIES-}}"
    PLUGIN_DIR=${directories[0]-}
    for directory in "${directories[@]}"; do
        [[ -d $directory ]] || die "Slurm's plugin directory must exist; found no '$directory'; set PluginDir in $CONF"
        add_mount "$directory"
    done
    [[ $PLUGIN_DIR ]] || die "Slurm's plugin directory must be known; found none; set PluginDir in $CONF"
    [[ ! ${SLURM_LIBRARIES-} || ! -d $SLURM_LIBRARIES ]] || add_slurm_libraries
    for plugin in auth_munge auth_slurm auth_jwt cred_munge hash_k12 accounting_storage_slurmdbd tls_s2n \
        http_parser_libhttp_parser; do
        if [[ -e $PLUGIN_DIR/$plugin.so ]]; then add_libraries "$PLUGIN_DIR/$plugin.so"; fi
    done
    for plugin in "$PLUGIN_DIR"/mpi_pmix_v*.so; do
        if [[ -e $plugin ]]; then add_pmix "$plugin"; fi
    done
}

# add_pmix PLUGIN: for srun --mpi=pmix. The plugin itself opens PMIx's library, in a directory that is
# compiled into it; under its name there, because a program of the image's has one of its own.
add_pmix() {
    local directory library
    add_libraries "$1"
    while IFS= read -r directory; do
        for library in "$directory"/libpmix.so{,.2}; do
            [[ -e $library ]] || continue
            add_mount "$(realpath -- "$library")" "$library"
            add_libraries "$library"
            return
        done
    done < <(grep -aoE '/[[:alnum:]_./+-]+' "$1")
}

# A directory that also holds the whole system's libraries must not cover the image's.
add_slurm_libraries() {
    local library
    [[ $SLURM_LIBRARIES == */slurm* ]] && add_mount "$SLURM_LIBRARIES" && return
    for library in "$SLURM_LIBRARIES"/libslurm*.so*; do
        add_mount "$(realpath -- "$library")" "$library"
    done
}

# add_plugstack: srun aborts if a plugin that plugstack.conf names is not there, or an included file.
add_plugstack() {
    local kind path
    while IFS= read -r path; do
        [[ $path == "${CONF%/*}"/* ]] || add_mount "$path"
    done < <(conf_files "$CONF" && plugstack_files)
    while read -r kind path _; do
        add_stacked_plugin "$kind" "$path"
    done < <(plugstack_plugins)
}

add_stacked_plugin() {
    local path=$2
    [[ $path == /* ]] || path=$PLUGIN_DIR/$path
    if [[ -e $path ]]; then
        [[ $path == "$PLUGIN_DIR"/* ]] || add_mount "$path"
        add_libraries "$path"
    elif [[ $1 == required ]]; then
        die "a plugin that plugstack.conf requires must be on this host; found no $path; install it, or srun aborts"
    fi
}

add_configuration() {
    add_mount "${CONF%/*}"
    if [[ ${SLURM_CONF-} && ${SLURM_CONF%/*} != "${CONF%/*}" ]]; then add_mount "${CONF%/*}" "${SLURM_CONF%/*}"; fi
    # A client finds it at /etc/slurm only if that is where the programs were built for.
    if [[ ! ${SLURM_CONF-} && $CONF_AS_FOUND == /run/* ]]; then # slurmd's link to its cache, without such files
        add_mount "${CONF%/*}" "${CONF_AS_FOUND%/*}"
        add_mount "${CONF%/*}" /etc/slurm
    fi
    add_plugstack
}

add_authentication() {
    local type socket
    type=$(conf_value AuthType)
    if [[ $type == auth/slurm ]]; then
        [[ -d /run/slurm ]] || die "auth/slurm must have its socket in /run/slurm; found no such directory; is sackd running?"
        add_mount /run/slurm
        return
    fi
    socket=$(conf_value AuthInfo | sed -nE 's/.*socket=([^,]*).*/\1/p')
    socket=${socket:-$(realpath -m /run/munge/munge.socket.2)}
    [[ -S $socket ]] || die "munge must be running on this host; found no socket $socket; start munged"
    # Its directory, because a restarted munged makes a new socket.
    add_mount "$(dirname -- "$socket")"
}

# Slurm's client ends if SlurmUser has no number, and takes the controller's messages from it alone.
add_names() {
    local slurm_user
    add_mount /etc/hosts
    slurm_user=$(conf_value SlurmUser)
    [[ ${slurm_user:-root} != root && ! $slurm_user =~ ^[0-9]+$ ]] || return 0
    grep -q "^$slurm_user:" /etc/passwd ||
        log_info "warning: SlurmUser $slurm_user is not in /etc/passwd: srun in the container works only if the image knows it by the same number"
    grep -q "^[^:]*:[^:]*:$(id -u):" /etc/passwd ||
        log_info "warning: you are not in this host's /etc/passwd: in the container your number will have no name"
    add_mount /etc/passwd
}

main() {
    help_if_asked "${1-}" "${BASH_SOURCE[0]}"
    (($# == 0)) || die "there must be no arguments; found '$1'; leave it out, the host's own Slurm is described"
    find_configuration
    add_programs
    add_plugins
    add_configuration
    add_authentication
    add_names
    join_unique '' "${MOUNTS[@]}"
    echo
}

main "$@"
