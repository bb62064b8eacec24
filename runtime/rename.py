"""The Python files of modelc/runtime as the package modelc_runtime, which needs no modelc."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "modelc/runtime"


def write_renamed(folder: Path) -> list[Path]:
    """Writes them to `folder`/modelc_runtime, and says which they are."""
    place = folder / "modelc_runtime"
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for source in sorted(SOURCES.glob("*.py")):
        target = place / source.name
        target.write_text(source.read_text().replace("modelc.runtime", "modelc_runtime"))
        written.append(target)
    return written
