"""The process that makes one cell: it reads an order as JSON, and writes what became of it.

python -m modelc.build.worker ANSWER.json < ORDER.json      on stdout a line says what stage it is at
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelc.errors import ModelcError, escaped
from modelc.signals import tidy_ends

PR_SET_PDEATHSIG = 1


def made(order: Mapping[str, Any]) -> dict[str, Any]:
    """A package as an order says: what became of it, and what was read of a database. Raises ModelcError."""
    from modelc.compile.given import read_given
    from modelc.target import parse_target

    target = parse_target(order["target_text"], order["target"]) if order["target_text"] else order["target"]
    options = {**order["options"], "progress": _say}
    if "inputs" in options:
        options["inputs"] = read_given(Path(options["inputs"]), [Path(order["model"])])
    if order["tuned"]:
        from modelc.tune.command import tune_request
        from modelc.tune.request import TuneRequest

        request = TuneRequest(order["model"], target, output=order["output"], **options)
        (tuning,) = tune_request(request)
        said = tuning.to_json()
        notes, seconds, verification = said["notes"], said["seconds"], said["verification"]
        outcome = {"tuned": True, "seconds": seconds, "notes": notes, "verification": verification}
        times = {name: said[name] for name in ("untuned_ms", "tuned_ms", "ort_ms")}
        return {"outcome": {**outcome, "times": times}, "consulted": None, "answers": ""}
    from modelc.compile.command import compile_request
    from modelc.compile.request import CompileRequest

    asked = CompileRequest(order["model"], target, order["output"], **options)
    if not asked.quantizes:
        result = compile_request(asked)
    else:
        from modelc.quantize.command import compile_quantized

        result = compile_quantized(asked)
    compiled = result.to_json()
    outcome = {"tuned": False, "seconds": compiled["total_seconds"], "notes": compiled["notes"]}
    consulted = None if result.consulted is None else result.consulted.to_json()
    outcome |= {"verification": compiled["verification"]}
    return {"outcome": outcome, "consulted": consulted, "answers": result.answers}


def _say(stage: str, text: str) -> None:
    sys.stdout.write(f"{stage} {' '.join(text.split())}\n")
    sys.stdout.flush()


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # whoever asked is gone: nobody takes the answer
    answer: dict[str, Any]
    with tidy_ends():
        order = json.load(sys.stdin)
        try:
            answer = made(order)
        except ModelcError as error:
            answer = {"error": str(error), "kind": type(error).__name__, "exit_code": error.exit_code}
        except Exception as error:
            failure = escaped(error)
            answer = {"error": str(failure), "kind": type(failure).__name__, "exit_code": failure.exit_code}
        partial = f"{sys.argv[1]}.partial"
        Path(partial).write_text(json.dumps(answer))
        os.replace(partial, sys.argv[1])


if __name__ == "__main__":
    main()
