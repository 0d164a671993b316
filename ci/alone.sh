#!/usr/bin/env bash
# Fails where another process is on the GPU: times taken beside it would be its times too.
set -euo pipefail
gpu=${CUDA_VISIBLE_DEVICES:-0}
others=$(nvidia-smi --id="$gpu" --query-compute-apps=pid,name,used_memory --format=csv,noheader)
if [[ -n $others ]]; then
    printf 'GPU %s is not free, nothing is timed:\n%s\n' "$gpu" "$others" >&2
    exit 1
fi
echo "GPU $gpu is free"
nvidia-smi --id="$gpu" --format=csv \
    --query-gpu=name,driver_version,persistence_mode,power.limit,clocks.sm,clocks.mem,temperature.gpu
