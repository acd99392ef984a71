#!/usr/bin/env bash
# One file of a Docker image, for Enroot and Pyxis.
#
#   container/to_squashfs.sh IMAGE FILE [--force]      e.g. ddp ddp.sqsh
#
# With Enroot: enroot import. Without: the same format from docker export and mksquashfs.
# FILE appears whole or not at all, FILE.sha256 beside it. Needs about the image's size in $TMPDIR.
# ENROOT_SQUASH_OPTIONS replaces the compression (docs/image.md has the numbers).
unset CDPATH POSIXLY_CORRECT BASH_ENV
set +o posix
set -Eeuo pipefail
shopt -s inherit_errexit

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
readonly HERE
# shellcheck source=jobs/common.sh
. "$HERE/../jobs/common.sh"
readonly DEFAULT_SQUASH_OPTIONS='-comp zstd -Xcompression-level 6 -exit-on-error'
STAGE='' SCRATCH='' CONTAINER='' CHILD=''

# shellcheck source=container/rootfs.sh
. "$HERE/rootfs.sh"

parse_arguments() {
    local words=()
    FORCE=0
    help_if_asked "${1-}" "${BASH_SOURCE[0]}"
    while (($#)); do
        case $1 in
            --force) FORCE=1 ;;
            -*) die "the option must be --force; found '$1'; see --help" ;;
            *) words+=("$1") ;;
        esac
        shift
    done
    ((${#words[@]} == 2)) || die "there must be an IMAGE and a FILE; found '${words[*]}'; write container/to_squashfs.sh ddp ddp.sqsh"
    IMAGE=${words[0]} FILE=${words[1]}
}

check_target() {
    local directory
    directory=$(dirname -- "$FILE")
    [[ -d $directory ]] || die "the file's directory must exist; found no $directory; make it with mkdir -p"
    [[ -w $directory ]] || die "the file's directory must be writable; found $directory is not; choose another"
    [[ ! -d $FILE ]] || die "the file must not be a directory; found '$FILE' is one; give a name in it, such as $FILE/ddp.sqsh"
    [[ ! -e $FILE ]] || ((FORCE)) || die "the file must not exist; found $FILE; add --force to replace it"
}

check_source() {
    command -v docker >/dev/null || die "a Docker engine must hold the image; found no docker on PATH; install it, or run this where the image was built"
    docker info >/dev/null 2>&1 || die "a Docker engine must answer; found none that does; start dockerd, or set DOCKER_HOST, or ask for access to it"
    docker image inspect -- "$IMAGE" >/dev/null 2>&1 ||
        die "the image must be one of this engine's (docker images); found no '$IMAGE'; build it with docker build -t $IMAGE ."
}

check_tools() {
    local tool
    if command -v enroot >/dev/null; then return; fi
    for tool in mksquashfs tar; do
        command -v "$tool" >/dev/null || die "the file must be made by enroot, or by mksquashfs and tar; found no $tool; install it (squashfs-tools)"
    done
}

# Nothing is left behind, whatever happened.
clean_up() {
    if [[ $CHILD ]]; then
        kill -- "-$CHILD" 2>/dev/null || :
        wait "$CHILD" 2>/dev/null || :
    fi
    if [[ $CONTAINER ]]; then docker rm -f -v "$CONTAINER" >/dev/null 2>&1 || :; fi
    if [[ $SCRATCH ]]; then
        chmod -R u+rwX -- "$SCRATCH" 2>/dev/null || :
        rm -rf -- "$SCRATCH"
    fi
    if [[ $STAGE ]]; then rm -rf -- "$STAGE"; fi
}

# attentively COMMAND...: in the background, so that a trap acts at once, and in a process group of
# its own, so that the whole pipeline can be ended.
attentively() {
    local code=0
    set -m
    "$@" &
    CHILD=$!
    set +m
    wait "$CHILD" || code=$?
    CHILD=''
    return "$code"
}

# Enroot refuses an existing target: it gets one in the staging directory.
import_with_enroot() {
    log_info "importing $IMAGE with enroot"
    attentively enroot_import ||
        die "enroot import must succeed; found it failed (see above); is there room in its temporary directory and beside $FILE?"
    chmod -- =rw "$STAGE/image" # less the user's umask
}

# Under an umask of 077 it would lock the image's users out of the image's own root directory.
enroot_import() {
    umask 022
    export ENROOT_SQUASH_OPTIONS=${ENROOT_SQUASH_OPTIONS-$DEFAULT_SQUASH_OPTIONS}
    exec enroot import -o "$STAGE/image" "dockerd://$IMAGE"
}

import_with_docker() {
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/to_squashfs.XXXXXXXX" 2>/dev/null) ||
        die "there must be a temporary directory; found that none can be made in ${TMPDIR:-/tmp}; set TMPDIR to one that is writable"
    mkdir -- "$SCRATCH/rootfs"
    # The command is never run; without one, an image that has none could not be exported. In a session
    # of its own, because after a Ctrl-C the engine would make a container that nobody knows.
    CONTAINER=$(setsid docker create "$IMAGE" /bin/sh) ||
        die "the engine must make a container of $IMAGE; found it failed (see above); is there room on its disk?"
    log_info "exporting $IMAGE"
    attentively rootfs_export "$CONTAINER" "$SCRATCH/rootfs" ||
        die "the image must be exported to $SCRATCH; found it failed (see above); is there room? TMPDIR may name another place"
    rootfs_fix_modes "$SCRATCH/rootfs"
    rootfs_configure "$IMAGE" "$SCRATCH/rootfs"
    log_info "compressing"
    attentively make_squashfs "$SCRATCH/rootfs" "$STAGE/image" ||
        die "mksquashfs must succeed; found it failed (see above); is there room beside $FILE? without zstd, set ENROOT_SQUASH_OPTIONS='-comp gzip'"
}

# Everything belongs to root, as Enroot has it; the host's extended attributes stay here. What the engine
# (empty files) and we have added is made as old as the newest of the image's own files: the same image
# gives the same file. Not as old as the image: reproducible builds date that back, and Python would
# compile every module anew. Version 4.3, of RHEL 8, has no -quiet.
make_squashfs() {
    local options
    read -ra options <<<"${ENROOT_SQUASH_OPTIONS-$DEFAULT_SQUASH_OPTIONS}"
    SOURCE_DATE_EPOCH=$({ echo 0 && find "$1" -type f -size +0 ! -newer "$SCRATCH" -printf '%Ts\n'; } | sort -n | tail -n 1)
    export SOURCE_DATE_EPOCH
    exec mksquashfs "$1" "$2" -noappend -all-root -no-xattrs -no-progress "${options[@]}" >/dev/null
}

# The old checksum goes first: at no time does a wrong one lie beside the file.
publish() {
    local sum
    sum=$(sha256sum <"$STAGE/image")
    printf '%s  %s\n' "${sum%% *}" "$(basename -- "$FILE")" >"$STAGE/sum"
    rm -f -- "$FILE.sha256"
    mv -f -- "$STAGE/image" "$FILE"
    mv -f -- "$STAGE/sum" "$FILE.sha256"
    log_info "wrote $FILE ($(du -h -- "$FILE" | cut -f1)), its checksum beside it"
}

main() {
    parse_arguments "$@"
    check_target
    check_source
    check_tools
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    STAGE=$(mktemp -d "$(dirname -- "$FILE")/.$(basename -- "$FILE").XXXXXXXX") ||
        die "the file must have a name and a disk that take it; found that they do not (see above); choose another"
    if command -v enroot >/dev/null; then import_with_enroot; else import_with_docker; fi
    publish
}

main "$@"
