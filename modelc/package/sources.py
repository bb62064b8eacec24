"""The C sources of the runtime, by where they run."""

from __future__ import annotations

from pathlib import Path

import modelc.runtime

RUNTIME = Path(modelc.runtime.__file__).parent
HEADERS = ("model.h", "modelc_runtime.h")
EVERYWHERE = (
    "modelc_steps.c",
    "modelc_memory.c",
    "modelc_range.c",
    "modelc_free.c",
    "modelc_fit.c",
    "modelc_text.c",
    "modelc_float.c",
    "modelc_features.c",
    "modelc_check.c",
)
HOSTED = (
    *EVERYWHERE,
    "modelc_host.c",
    "modelc_profile.c",
    "modelc_params.c",
    "modelc_made.c",
    "modelc_clock.c",
    "modelc_files.c",
    "modelc_pool.c",
    "modelc_cpu.c",
    "modelc_sha256.c",
)
BARE = (*EVERYWHERE, "modelc_bare.c")
