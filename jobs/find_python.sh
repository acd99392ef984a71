# shellcheck shell=bash
# Where the Python of supervisor and agent is; sourced by the scripts that exec them.

# find_python ROOT: prints the first Python 3.9 or later; nothing, and code 1, if there is none. In the
# image its own comes first: a .venv in a mounted directory was made for the host. Each is run, for
# 10 ms: a program of the name may be no Python, and one without `resource`, such as Debian's
# python3-minimal, lacks more of what we import.
find_python() {
    local candidate
    for candidate in "${DDP_PYTHON-}" "${DDP_HOME:+$DDP_HOME/.venv/bin/python}" "$1/.venv/bin/python" python3 \
        python3.{14..9} /opt/conda/bin/python3; do
        if [[ $candidate && $("$candidate" -I -S -c 'import sys, resource; print(sys.version_info >= (3, 9))' 2>/dev/null) == True ]]; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}
