#!/usr/bin/env bash
# Makes the tasks of a job one Ray cluster, and runs a program on the first: cluster.sh COMMAND
set -Eeuo pipefail
address=$MASTER_ADDR:$MASTER_PORT finished=$DDP_RUN_DIR/ray-finished.$DDP_ATTEMPT
# Ports that are free, or the job's own: MASTER_PORT may be one of those that Ray takes by default.
options=(--min-worker-port=0 --max-worker-port=0 --ray-client-server-port=$((MASTER_PORT % 50000 + 10001)))
if ((RANK == 0)); then
    ray start --head --node-ip-address="$MASTER_ADDR" --port="$MASTER_PORT" --include-dashboard=false "${options[@]}"
    RAY_ADDRESS=$address "$@"
    touch "$finished"
else
    until ray start --address="$address" "${options[@]}"; do sleep 1; done # the head may not be up yet
    until [[ -e $finished ]]; do sleep 1; done
fi
