#!/bin/sh
# Installs modelc into a virtual environment, compiles a trained face detector for this machine, compares its outputs
# with ONNX Runtime's, and times both: sh scripts/quickstart.sh [MODEL, a name of tests/models.yaml without free shapes]
# VENV names the environment (default .venv), OUT the folder for model and package (default build).
set -eu
cd "$(dirname "$0")/.."
model=${1:-yunet}
venv=${VENV:-.venv}
out=${OUT:-build}

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check .
"$venv/bin/python" scripts/fetch_models.py "$model" --dir "$out"

modelc="$venv/bin/modelc"
"$modelc" compile "$out/$model.onnx" -o "$out/$model.modelc"
"$modelc" verify "$out/$model.modelc" --against "$out/$model.onnx"
"$modelc" bench "$out/$model.modelc" --against ort --model "$out/$model.onnx"
