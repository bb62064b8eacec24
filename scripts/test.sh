#!/bin/sh
# Lint, types and tests on all cores, in a virtual environment of its own: sh scripts/test.sh [PYTEST OPTION...]
# VENV names the environment (default .venv). Types are checked beside the tests, and what is wrong with them is said
# at the end.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would compile the same modules again

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -e '.[test]'
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy" >"$venv/types.txt" 2>&1 &
types=$!
failed=0
"$venv/bin/python" -m pytest -n auto --dist worksteal "$@" || failed=$?
wait "$types" || failed=1
cat "$venv/types.txt"
exit "$failed"
