#!/bin/sh
# Lint, types and tests on all cores, in a virtual environment of its own: sh scripts/test.sh [PYTEST OPTION...]
# VENV names the environment (default .venv).
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[test]'
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
"$venv/bin/python" -m pytest -n auto --dist worksteal "$@"
