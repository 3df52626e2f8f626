#!/usr/bin/env bash
# Profiles of qwen3-8b and llama3.1-8b on one CUDA device, in under 8 minutes, by one command:
#
#     bash benchmarks/gpu_profile.sh [OUT]
#
# The machine needs Python with torch 2.11 or newer and numpy; nothing is installed. OUT (default
# gpu-profiles) receives MODEL.json, the timings, and gpu_profile.log. Where the whole program can
# be imported each MODEL.json also becomes a profile folder OUT/MODEL; where not, the log ends with
# the command that does it elsewhere.
#
# To try it out without a GPU:
#
#     MODELS=trial bash benchmarks/gpu_profile.sh OUT --device cpu --quick --contexts 64,32
#
# Options after OUT replace the defaults below. MODELS, SECONDS_EACH and PYTHON can be set.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-gpu-profiles}
shift || true
python=${PYTHON:-python3}
models=${MODELS:-qwen3-8b llama3.1-8b}
each=${SECONDS_EACH:-200}
mkdir -p "$out"
log=$out/gpu_profile.log
export PYTHONUNBUFFERED=1

measure() {
    local defaults=(--device cuda --dtype bfloat16 --contexts 2048,512,8192 --capture-limit 1024)
    if [ $# -gt 1 ]; then defaults=(); fi
    "$python" "$root/dspark_sim/model/timing" --model "$1" --out "$out/$1.json" \
        --max-seconds "$each" "${defaults[@]}" "${@:2}"
}

convert() {
    local again="dspark-sim profile measure --timings $1.json --out $1"
    if ! PYTHONPATH=$root "$python" -c 'import dspark_sim.throughput' 2>/dev/null; then
        echo "to make the profile, where dspark-sim is installed: $again"
    else
        (cd "$out" && PYTHONPATH=$root "$python" -m dspark_sim profile measure \
            --timings "$1.json" --out "$1")
    fi
}

{
    echo "started $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    nvidia-smi 2>/dev/null || echo "no nvidia-smi"
    failed=0
    for model in $models; do
        echo "== $model"
        if measure "$model" "$@"; then
            convert "$model"
        else
            failed=1
        fi
    done
    echo "ended $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    exit $failed
} 2>&1 | tee "$log"
