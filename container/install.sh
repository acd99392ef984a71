#!/usr/bin/env bash
# Run by the Dockerfile: puts the project at /opt/ddp and what it needs into /opt/venv.
#
#   install.sh system | dependencies | project
#
# The virtual environment sees the base image's packages, so that a torch which is already there
# (and was built for that image's CUDA and NCCL) is used and never replaced.
set -Eeuo pipefail
umask 022 # world-readable, whatever the engine's umask

readonly ROOT=${DDP_INSTALL_ROOT:-/opt/ddp}
readonly VENV=${DDP_INSTALL_VENV:-/opt/venv}
readonly PROFILES=${DDP_INSTALL_PROFILES:-/etc/profile.d}
readonly STUB=/usr/local/bin/nvidia-container-cli
readonly HELD=$VENV/held-by-the-base-image.txt
readonly NEEDED_PROGRAMS=(bash python3 setpriv timeout awk grep sed df find)

die() {
    printf 'install: %s\n' "$*" >&2
    exit 64
}

check_base() {
    local program
    for program in "${NEEDED_PROGRAMS[@]}"; do
        command -v "$program" >/dev/null ||
            die "the base image must have ${NEEDED_PROGRAMS[*]}; found no $program; choose another BASE_IMAGE, or add it there"
    done
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "the base image must have Python 3.11 or later; found $(python3 -V); choose another BASE_IMAGE"
}

# The base image's pip works in the environment, too; Debian's python3 may lack it, or ensurepip. Where
# its python3 is a virtual environment's own, what is installed there counts as the base image's.
make_venv() {
    local base site
    if python3 -m pip --version >/dev/null 2>&1; then
        python3 -m venv --system-site-packages --without-pip "$VENV"
    else
        python3 -m venv --system-site-packages "$VENV" ||
            die "the base image must have pip or ensurepip; found neither; add python3-pip there"
    fi
    base=$(python3 -c 'import sys, sysconfig; print("" if sys.prefix == sys.base_prefix else sysconfig.get_path("purelib"))')
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$base" >"$site/base-image.pth"
}

# Prints what is left to install, and writes to $HELD what the base image holds of it. An alpha of a
# release (an NGC torch is 2.11.0a0+…) counts as the release: only pip would call it too old.
requirements() {
    "$VENV/bin/python" - "$ROOT/pyproject.toml" "$HELD" <<'PYTHON'
import importlib.metadata as metadata
import re
import sys
import tomllib

project, held = sys.argv[1:]
kept = {}
for name in ("torch", "torchvision", "torchaudio", "triton", "pytorch-triton"):
    try:
        kept[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
with open(project, "rb") as file:
    wanted = tomllib.load(file)["project"]["dependencies"]
for requirement in wanted:
    name, bound = re.fullmatch(r"([\w-]+)\s*>=\s*([\d.]+)", requirement).groups()
    if name not in kept:
        print(requirement)
        continue
    release = re.match(r"[\d.]*\d", kept[name])[0]
    if [int(n) for n in release.split(".")] < [int(n) for n in bound.split(".")]:
        sys.exit(
            f"install: the base image's {name} must be {bound} or later; found {kept[name]}; "
            "choose a newer BASE_IMAGE"
        )
with open(held, "w") as file:
    file.writelines(f"{name}=={version}\n" for name, version in kept.items())
PYTHON
}

pip_install() {
    "$VENV/bin/python" -m pip install --no-cache-dir --no-input --root-user-action=ignore "$@"
}

# What no wheel brings. Without libibverbs NCCL takes TCP instead of InfiniBand, and reports it only to
# who asks for NCCL_DEBUG=INFO; --compile needs a compiler, and Python.h. A build without a network goes on.
install_system() {
    local missing=() headers
    check_base
    install_toolkit_stub
    if ! ldconfig -p | grep 'libibverbs\.so\.1' >/dev/null; then missing+=(libibverbs1 ibverbs-providers librdmacm1); fi
    if ! command -v g++ >/dev/null; then missing+=(g++); fi
    # Debian has the headers of its Python in a package of their own; those of another are not there.
    headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include", "posix_prefix"))')
    if [[ $headers == /usr/include/* && ! -e $headers/Python.h ]]; then missing+=(python3-dev); fi
    ((${#missing[@]})) || return 0
    # A base that was imported keeps the packages themselves.
    if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}" && apt-get clean; }; then
        echo "install: warning: the image goes without ${missing[*]}: NCCL needs libibverbs for InfiniBand, and --compile g++ and Python.h; add them to BASE_IMAGE" >&2
    fi
    rm -rf /var/lib/apt/lists/*
}

# Enroot's hook for GPUs starts no container where a node lacks NVIDIA's toolkit. It looks for its
# program in the image, too, after the node: a container without a GPU is better than none.
install_toolkit_stub() {
    if command -v nvidia-container-cli >/dev/null; then return 0; fi
    mkdir -p "${STUB%/*}"
    printf '#!/bin/sh\necho "ddp: no nvidia-container-cli on this node: the container gets no GPU" >&2\n' >"$STUB"
    chmod 755 "$STUB"
}

install_dependencies() {
    local needed
    check_base
    make_venv
    requirements >"$VENV/requirements.txt" || exit 64
    mapfile -t needed <"$VENV/requirements.txt"
    # An image's own constraints (NGC has some) stay in force beside ours.
    PIP_CONSTRAINT="${PIP_CONSTRAINT:+$PIP_CONSTRAINT }$HELD" pip_install "${needed[@]}"
}

# Editable: one copy of the packages, the one beside jobs/.
install_project() {
    pip_install --no-deps --editable "$ROOT"
    # Here, because the root file system may be read-only at run time.
    "$VENV/bin/python" -m compileall -q "$ROOT"/{rundir,trainer,monitor,jobs}
    # Where the scripts look first, whatever PATH is.
    ln -s "$VENV" "$ROOT/.venv"
    # Enroot starts a login shell, and in it Debian's /etc/profile sets PATH anew.
    install --directory --mode=755 "$PROFILES"
    # shellcheck disable=SC2016 # $PATH is the login shell's
    printf 'PATH=%s/bin:$PATH\n' "$VENV" >"$PROFILES/ddp.sh"
    install --directory --mode=1777 "${DDP_INSTALL_OUT:-/out}"
    chmod -R a+rX,go-w "$ROOT"
}

main() {
    case ${1-} in
        system) install_system ;;
        dependencies) install_dependencies ;;
        project) install_project ;;
        *) die "the step must be 'system', 'dependencies' or 'project'; found '${1-}'; see the Dockerfile" ;;
    esac
}

main "$@"
