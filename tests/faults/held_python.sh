#!/bin/sh
# The interpreter HELD_PYTHON; rank 0's waits while there is a file `hold` in FAULT_DIR.
while [ "${RANK-}" = 0 ] && [ -e "$FAULT_DIR/hold" ]; do sleep 0.1; done
exec "$HELD_PYTHON" "$@"
