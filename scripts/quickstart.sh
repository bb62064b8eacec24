#!/bin/sh
# Installs modelc into a virtual environment, compiles a trained face detector for this machine, compares its outputs
# with ONNX Runtime's, times both, and draws the faces that it finds into a photograph; then compiles it for a Raspberry
# Pi, verified under emulation: sh scripts/quickstart.sh [MODEL, a name of tests/models.yaml without free shapes]
# VENV names the environment (default .venv), OUT the folder for model, packages and picture (default build).
set -eu
cd "$(dirname "$0")/.."
model=${1:-yunet}
venv=${VENV:-.venv}
out=${OUT:-build}

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check . pillow
"$venv/bin/python" scripts/fetch_models.py "$model" --dir "$out"

modelc="$venv/bin/modelc"
"$modelc" compile "$out/$model.onnx" -o "$out/$model.modelc"
"$modelc" verify "$out/$model.modelc" --against "$out/$model.onnx"
"$modelc" bench "$out/$model.modelc" --against ort --model "$out/$model.onnx"
if [ "$model" = yunet ]; then
    "$venv/bin/python" examples/faces.py "$out/$model.modelc" -o "$out/faces.png"
fi

if "$modelc" doctor --json | grep -A 2 '"emulator of aarch64"' | grep -q '"present": true' &&
    "$modelc" doctor --json | grep -A 2 '"compiler for aarch64"' | grep -q '"present": true'; then
    "$modelc" compile "$out/$model.onnx" --target raspberry-pi-5 -o "$out/$model-pi.modelc"
else
    echo "for a Raspberry Pi: apt install gcc-aarch64-linux-gnu qemu-user-static, and run this again"
fi
