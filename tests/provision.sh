#!/usr/bin/env bash
# Installs and starts what the tests need of the system: provision.sh [--install-only]
set -Eeuo pipefail

# program=package: a program that is there, from wherever, needs no package.
readonly NEEDS=(
    slurmctld=slurm-wlm slurmd=slurm-wlm srun=slurm-wlm munged=munge
    dockerd=docker.io mksquashfs=squashfs-tools bwrap=bubblewrap mmdebstrap=mmdebstrap
    chromium=chromium chromedriver=chromium-driver ip=iproute2 iptables=iptables faketime=faketime
    gcc=gcc gcc=libc6-dev                # the latter comes along where the former is missing
    srun=libpmix-dev                     # likewise: it has the file that Slurm's PMIx plugin opens
    'g++=g++' python3-config=python3-dev # what --compile needs
)
readonly DOCKER_LOG=${DDP_DOCKER_LOG:-/var/log/ddp-dockerd.log}
readonly DOCKER_START_S=60

say() { printf 'provision: %s\n' "$*" >&2; }

missing_packages() {
    local need
    for need in "${NEEDS[@]}"; do
        command -v "${need%%=*}" >/dev/null || printf '%s\n' "${need#*=}"
    done | sort -u
}

is_debian() { [[ $(uname -s) == Linux ]] && grep -qsE '^ID(_LIKE)?=.*(debian|ubuntu)' /etc/os-release; }

install_packages() {
    say "installing: $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    say "installed: $*"
}

docker_answers() { timeout 10 docker info >/dev/null 2>&1; }

# The first `docker` on PATH may be a client without an engine: only an answer counts.
# No engine is no failure: the tests that need it are skipped, each with its reason.
start_docker() {
    local deadline=$((SECONDS + DOCKER_START_S))
    ! docker_answers || return 0
    say "starting dockerd, log in $DOCKER_LOG"
    setsid dockerd </dev/null >>"$DOCKER_LOG" 2>&1 &
    until docker_answers; do
        if ((SECONDS >= deadline)) || ! kill -0 $! 2>/dev/null; then
            say "dockerd does not answer; see $DOCKER_LOG"
            return 0
        fi
        sleep 0.2
    done
    say "dockerd answers"
}

main() {
    local packages
    case ${1:-} in
        '' | --install-only) ;;
        *)
            say "unknown option: the only one is --install-only; found $1; leave it out"
            exit 64
            ;;
    esac
    mapfile -t packages < <(missing_packages)
    if ((EUID != 0)) || ! is_debian; then
        say "nothing done: it installs as root on Debian or Ubuntu only; missing here: ${packages[*]:-nothing}"
        return
    fi
    if ((${#packages[@]})); then install_packages "${packages[@]}"; else say "nothing is missing"; fi
    [[ ${1:-} == --install-only ]] || start_docker
}

main "$@"
