#!/bin/sh
# The interpreter OWN_MOUNTS_PYTHON; on the node OWN_MOUNTS_NODE it and its children have mounts of their own, which
# the words OWN_MOUNTS make.
if [ "$(hostname)" = "$OWN_MOUNTS_NODE" ] && [ -z "${HAS_OWN_MOUNTS-}" ]; then
    # shellcheck disable=SC2016 # the inner shell's
    HAS_OWN_MOUNTS=1 exec unshare --mount sh -ec 'eval "$OWN_MOUNTS"; exec "$@"' sh "$OWN_MOUNTS_PYTHON" "$@"
fi
exec "$OWN_MOUNTS_PYTHON" "$@"
