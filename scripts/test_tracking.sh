#!/usr/bin/env bash
# Trains the built-in model with both trackers, on whatever is there (a GPU is not needed), and checks that every
# documented file has been written. Further options go to the training: scripts/test_tracking.sh --config.peft.type dora
set -euo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

"$python" run.py --enable_tracking --tracking_frequency 20 --config.training.output_dir "$out/training" "$@"

missing=0
for file in \
    spectral_logs/spectral_history.pt spectral_logs/spectral_history_summary.json \
    gradient_logs/gradient_flow.pt gradient_logs/gradient_flow_summary.json \
    gradient_logs/gradient_layer_comparison.png \
    spectral_history_final.pt gradient_flow_final.pt \
    adapter_model.safetensors adapter_config.json run/run.json; do
    if [ ! -s "$out/training/$file" ]; then
        echo "missing: $file" >&2
        missing=1
    fi
done
# one for each part that the family trains: gradient_heatmap_A.png and _B.png for LoRA
ls "$out"/training/gradient_logs/gradient_heatmap_*.png >/dev/null 2>&1 || { echo "missing: a heatmap" >&2; missing=1; }
[ "$missing" = 0 ] && echo "all documented files are there"
exit "$missing"
