#!/usr/bin/env bash
# Other Debians on this machine, each with a Slurm and a Python of its own, to run the tests in.
set -Eeuo pipefail

self=$(realpath -- "${BASH_SOURCE[0]}")
repo=${self%/tests/matrix/*}
roots=${DDP_MATRIX_DIR:-/var/cache/ddp-matrix}
readonly self repo roots
readonly packages=slurm-wlm,munge,python3-venv,iproute2,iptables,procps,e2fsprogs,faketime,gcc,libc6-dev,ca-certificates

usage() {
    cat <<'END'
usage: root.sh COMMAND SUITE [ARGUMENT…]
  build SUITE         make a root of Debian's trixie or sid with the packages of pyproject.toml,
                      unless there is one
  run SUITE COMMAND   run a command there, in the checkout; network, processes and files outside the
                      checkout are its own, and gone afterwards
environment:
  DDP_MATRIX_DIR      where roots are kept, 7 GB each: /var/cache/ddp-matrix
END
}

say() { printf 'root: %s\n' "$*" >&2; }

# die WHAT RULE FOUND REMEDY: one line, exit 64.
die() {
    say "$1: $2; found $3; $4"
    exit 64
}

require_machine() {
    local program
    ((EUID == 0)) || die "no root here" "it needs root for mounts and namespaces" "user $EUID" "run it with sudo"
    for program in mmdebstrap unshare setpriv flock ip; do
        command -v "$program" >/dev/null ||
            die "no root here" "it needs $program" "none on PATH" "run tests/provision.sh --install-only"
    done
}

# Another one whenever this script changes, or what pyproject.toml installs.
root_of() {
    local made_of
    made_of=$({ cat -- "$self" && sed -n '/^\[project/,/^\[tool/p' "$repo/pyproject.toml"; } | sha256sum)
    printf '%s/%s-%s' "$roots" "$1" "${made_of:0:12}"
}

# lock SUITE [OPTION]: nobody replaces a root while somebody is in it.
lock() {
    mkdir -p -- "$roots/changes"
    exec 9>"$roots/$1.lock"
    flock "${@:2}" 9
}

cmd_build() {
    local suite=$1 root
    [[ -x $repo/.venv/bin/python ]] ||
        die "no root built" "it takes over the pip settings of a virtual environment" "no $repo/.venv" "run make .venv/.dev"
    root=$(root_of "$suite")
    lock "$suite"
    [[ ! -d $root ]] || return 0
    rm -rf --one-file-system -- "${roots:?}/$suite"-*
    unshare --mount "$self" make "$suite" "$root.part"
    mv -- "$root.part" "$root"
}

# Runs with mounts of its own, as mmdebstrap mounts, too: nothing is left mounted where it is killed.
cmd_make() {
    local suite=$1 root=$2 mirror folder file
    mirror=$(debian_mirror)
    say "building $root: Debian's packages"
    # A release file past its date is good enough here.
    mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
        --include="$packages" "$suite" "$root" ${mirror:+"$mirror"}
    say "building $root: Python's packages"
    mkdir -p "$root"/{ddp,shared,venv}
    cp -L /etc/resolv.conf "$root/etc/"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    pip_settings >"$root/etc/pip.conf"
    for file in $(pip_constraints); do install -D -m 644 -- "$file" "$root$file"; done
    for folder in $(pip_folders); do
        [[ -d $folder ]] || continue
        mkdir -p "$root$folder"
        mount --bind "$folder" "$root$folder"
    done
    mount_machine "$root"
    in_root "$root" sh -c 'python3 -m venv .venv && .venv/bin/python -m pip install -qq --editable ".[dev]"'
}

# The mirror that this machine uses; where that is none of Debian's, mmdebstrap knows one.
debian_mirror() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "Debian" && !/security/ { print $2; exit }'
}

host_pip() { "$repo/.venv/bin/python" -m pip config list; }

pip_settings() {
    printf '[global]\n'
    host_pip | sed -nE "s/\\\\n/ /g; s/^global\.([a-z-]+)='(.*)'\$/\1 = \2/p"
}

pip_constraints() { host_pip | sed -nE "s/^global\.constraint='(.*)'\$/\1/p" | sed 's/\\n/ /g'; }

# Folders on this machine that pip is to look into; an index keeps its files beside its pages.
pip_folders() { host_pip | grep -oE "(file://|')/[^' ]+" | sed -E "s|^'||; s|^file://(.*)/[^/]+/?\$|\1|"; }

cmd_run() {
    local suite=$1 freezer=/sys/fs/cgroup/freezer/ddp-matrix-$$ root code=0
    shift
    root=$(root_of "$suite")
    (($#)) || die "nothing to run" "run takes a suite and a command" "no command" "try: $0 run $suite bash"
    lock "$suite" --shared
    [[ -d $root ]] || die "no root of $suite" "it must be built" "nothing at $root" "run $0 build $suite"
    # Two clusters on a machine may have nodes of one name, and so cgroups of one name.
    [[ ! -d ${freezer%/*} ]] || { mkdir "$freezer" && echo $BASHPID >"$freezer/cgroup.procs"; }
    setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child "$self" inside "$root" "$freezer" "$@" ||
        code=$?
    [[ ! -d $freezer ]] || {
        echo $BASHPID >"${freezer%/*}/cgroup.procs"
        find "$freezer" -depth -type d -exec rmdir {} +
    }
    return "$code"
}

# Runs with network, mounts and processes of its own; what changes in the root stays in memory.
cmd_inside() {
    local root=$1 freezer=$2 changes=$roots/changes folder
    ip link set lo up
    mount -t tmpfs -o mode=755 tmpfs "$changes"
    mkdir "$changes"/{upper,work}
    mount -t overlay -o "lowerdir=$root,upperdir=$changes/upper,workdir=$changes/work" overlay "$root"
    mount_machine "$root"
    [[ ! -d $freezer ]] || mount --bind "$freezer" "$root${freezer%/*}"
    for folder in tmp var/tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$root/$folder"; done
    [[ ! -d $repo/../shared ]] || mount --bind -o ro "$repo/../shared" "$root/shared"
    cp /etc/hosts "$root/etc/"
    in_root "$root" "${@:3}"
}

mount_machine() {
    local root=$1 folder
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys" # not a bind: it shows the network that it was mounted in
    for folder in sys/fs/cgroup dev; do
        mount --rbind "/$folder" "$root/$folder"
        mount --make-rslave "$root/$folder"
    done
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mkdir "$root/run/lock"
    mount --bind "$repo" "$root/ddp"
    mount --bind "$root/venv" "$root/ddp/.venv"
}

# in_root ROOT COMMAND…: of this machine's environment only what pip and the fault matrix read.
in_root() {
    local root=$1 name environment=(HOME=/root LANG=C.UTF-8 PATH=/ddp/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin)
    for name in $(compgen -e); do
        [[ $name != @(PIP_*|SSL_CERT_*|*_proxy|DDP_FAULT_*) ]] || environment+=("$name=${!name}")
    done
    env -i "${environment[@]}" chroot "$root" env --chdir=/ddp "${@:2}"
}

main() {
    case ${1:-help} in
        help | -h | --help) usage && return ;;
        build | run)
            [[ ${2:-} == @(trixie|sid) ]] || die "unknown suite" "trixie or sid" "${2:-none}" "see $0 --help"
            require_machine
            ;;
        make | inside) ;; # this script itself
        *) die "unknown command" "build or run" "$1" "see $0 --help" ;;
    esac
    "cmd_$1" "${@:2}"
}

main "$@"
