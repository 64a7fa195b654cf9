#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in at most five minutes: tests, then figures.
#
#     benchmarks/gpu.sh [FOLDER]        results go to FOLDER (default out/gpu): a log for each part, gpu.json of the figures
#
# PYTHON names the interpreter (default .venv/bin/python). Each part has a time-out of its own; what one leaves behind is
# kept, whatever becomes of the others. Exit status: 0 all went well, 1 some part did not, 2 there is no CUDA device.

set -u
cd "$(dirname "$0")/.." || exit 1
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${1:-out/gpu}
TOTAL_S=290
export PYTHONUNBUFFERED=1

mkdir -p "$OUT" || exit 1
rm -f "$OUT"/*.json "$OUT"/*.log "$OUT"/*.xml
if ! "$PYTHON" -c 'import torch' 2>"$OUT/torch.log"; then
    echo "gpu.sh: $PYTHON has no torch that works; PYTHON=... names another interpreter" >&2
    tail -n 1 "$OUT/torch.log" >&2
    exit 1
fi
rm -f "$OUT/torch.log"
if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu.sh: no CUDA device: $("$PYTHON" -c 'import torch; print("torch", torch.__version__)') finds none" >&2
    exit 2
fi

failed=()

# part NAME SECONDS COMMAND...: run it within its time-out and what is left of the total, its output to a log.
part() {
    local name=$1 limit=$2 left=$((TOTAL_S - SECONDS)) started=$SECONDS status
    shift 2
    if ((left < 5)); then
        echo "$name: not begun, the time is up"
        failed+=("$name")
        return
    fi
    timeout --kill-after=5 "$((limit < left ? limit : left))" "$@" >"$OUT/$name.log" 2>&1
    status=$?
    echo "$name: $( ((status == 0)) && echo ok || { ((status == 124 || status == 137)) && echo timed out || echo "failed ($status)"; }), $((SECONDS - started)) s"
    if ((status != 0)); then
        failed+=("$name")
        tail -n 15 "$OUT/$name.log"
    fi
}

tests() {
    part "$1" "$2" "$PYTHON" -m pytest -q -p no:cacheprovider --junitxml="$OUT/$1.xml" -m gpu "${@:3}"
}

figures() {
    part "$1" "$2" "$PYTHON" -m benchmarks.gpu_figures "$1" --json "$OUT/$1.json"
}

# What says most, and needs no compiler, comes first: FlashInfer compiles its kernels when they are first used, which may
# take minutes. A second run finds them in its cache.
figures versions 30
cat "$OUT/versions.log"
tests test-copies 45 tests/gpu/test_copies.py tests/contract/test_transfers.py
tests test-exactness 80 tests/gpu/test_exactness.py
figures copies 25
figures steps 50
figures beside 25
figures attention 40
tests test-attention 120 tests/gpu/test_attention.py

reports=()
for name in versions copies steps attention beside; do
    [ -s "$OUT/$name.json" ] && reports+=("$OUT/$name.json")
done
if ((${#reports[@]})); then
    "$PYTHON" -m benchmarks.gpu_figures merge "${reports[@]}" --json "$OUT/gpu.json" && echo "figures: $OUT/gpu.json"
fi
if ((${#failed[@]})); then
    echo "went wrong: ${failed[*]}" >&2
    exit 1
fi
