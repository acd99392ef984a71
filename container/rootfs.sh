# shellcheck shell=bash
# An image's file system and configuration as Enroot wants them: /etc/rc, /etc/fstab and
# /etc/environment. Sourced by to_squashfs.sh; knows Docker and the format, not squashfs.
# The format: doc/image-format.md of Enroot; what `enroot import dockerd://` writes into the files.

# image_list IMAGE FIELD: prints the items of a list in the image's configuration, NUL after each.
image_list() {
    docker image inspect --format "{{range .Config.$2}}{{printf \"%s\\x00\" .}}{{end}}" -- "$1" | sans_newline
}

# image_pairs IMAGE FIELD FORMAT: the same for a mapping; FORMAT gets key and value.
image_pairs() {
    docker image inspect --format \
        "{{range \$key, \$value := .Config.$2}}{{printf \"$3\\x00\" \$key \$value}}{{end}}" -- "$1" | sans_newline
}

image_field() {
    docker image inspect --format "{{.$2}}" -- "$1"
}

# The engine ends what it prints with a newline, after the last NUL.
sans_newline() {
    sed -z '${/^\n$/d}'
}

# rootfs_export CONTAINER DIRECTORY: the image's layers, flattened by the engine.
# Enroot makes /dev itself; /.dockerenv would tell programs that Docker runs them.
rootfs_export() {
    docker export "$1" |
        tar -C "$2" --warning=no-timestamp --anchored --exclude='dev/*' --exclude=.dockerenv -px
}

# Files that only CAP_DAC_OVERRIDE may read (Red Hat's images have some) would be lost to a user.
rootfs_fix_modes() {
    chmod 755 -- "$1"
    chmod -R u+rwX -- "$1"
}

# rootfs_configure IMAGE DIRECTORY
rootfs_configure() {
    local image=$1 rootfs=$2 file
    # Through a link of the image's we would write into this host's /etc.
    [[ ! -L $rootfs/etc ]] ||
        die "the image must have a directory /etc; found a link; make it one, or Enroot cannot start it"
    mkdir -p -- "$rootfs/etc"
    for file in rc rc.local fstab environment; do
        rm -rf -- "${rootfs:?}/etc/$file"
    done
    rootfs_write_environment "$image" >"$rootfs/etc/environment"
    # Volumes are writable places: Enroot binds each onto itself.
    # shellcheck disable=SC2016 # Enroot puts the value in
    image_pairs "$image" Volumes '${ENROOT_ROOTFS}%[1]s %[1]s none x-create=dir,bind,rw,nosuid,nodev\n' |
        tr -d '\0' >"$rootfs/etc/fstab"
    rootfs_write_rc "$image" >"$rootfs/etc/rc"
    echo '# Sourced by /etc/rc before the entry point: Pyxis replaces it by what it wants to run.' \
        >"$rootfs/etc/rc.local"
    chmod 644 -- "$rootfs"/etc/{rc,rc.local,fstab,environment}
    rootfs_make_directory "$rootfs" "$(image_field "$image" Config.WorkingDir)"
}

# One NAME=VALUE a line is all that the format can say.
rootfs_write_environment() {
    local entry
    while IFS= read -r -d '' entry; do
        if [[ $entry == *$'\n'* ]]; then
            log_info "warning: ${entry%%=*} of the image is left out, its value has several lines"
        else
            printf '%s\n' "$entry"
        fi
    done < <(image_list "$1" Env)
}

# rootfs_write_rc IMAGE: run by sh; it does what the engine does at a container's start.
rootfs_write_rc() {
    local workdir entrypoint=() command=() words
    workdir=$(image_field "$1" Config.WorkingDir)
    mapfile -d '' entrypoint < <(image_list "$1" Entrypoint)
    mapfile -d '' command < <(image_list "$1" Cmd)
    if ((${#entrypoint[@]} + ${#command[@]} == 0)); then command=(/bin/sh); fi
    words=$(quote_words "${entrypoint[@]}")
    printf '# enroot-provenance: dockerd://%s\n' "$1"
    printf '# image-id %s\n' "$(image_field "$1" Id)"
    image_pairs "$1" Labels '# %s %s' | tr '\n\0' ' \n'
    printf '\nmkdir -p %s 2>/dev/null\n' "$(quote_words "${workdir:-/}")"
    printf 'cd %s && unset OLDPWD || exit 1\n\n' "$(quote_words "${workdir:-/}")"
    printf 'if [ -s /etc/rc.local ]; then\n    . /etc/rc.local\nfi\n\n'
    printf 'if [ $# -gt 0 ]; then\n    exec %s "$@"\n' "$words"
    printf 'else\n    exec %s %s\nfi\n' "$words" "$(quote_words "${command[@]}")"
}

# rootfs_make_directory ROOTFS PATH: never through a link, which would lead out of the root.
rootfs_make_directory() {
    local path=$1 parts=() part
    IFS=/ read -ra parts <<<"${2#/}"
    for part in "${parts[@]}"; do
        path+=/$part
        [[ ! -L $path && $part != .. ]] || return 0
        [[ -d $path ]] || mkdir -- "$path"
    done
}
