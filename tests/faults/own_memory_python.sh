#!/bin/sh
# The interpreter OWN_MEMORY_PYTHON; on the node OWN_MEMORY_NODE it and its children have a /dev/shm of their own.
if [ "$(hostname)" = "$OWN_MEMORY_NODE" ] && [ -z "${HAS_OWN_MEMORY-}" ]; then
    # shellcheck disable=SC2016 # the inner shell's
    HAS_OWN_MEMORY=1 exec unshare --mount sh -c 'mount -t tmpfs -o size=256m tmpfs /dev/shm && exec "$@"' sh \
        "$OWN_MEMORY_PYTHON" "$@"
fi
exec "$OWN_MEMORY_PYTHON" "$@"
