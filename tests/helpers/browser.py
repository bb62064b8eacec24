"""A page in headless Chromium: what its console says, what it has drawn, and how it looks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LACKING = "there is no Chromium: apt install chromium"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")


class Seen(NamedTuple):
    """`console` has the lines of the page's console; `document` is what scripts have made of it."""

    console: tuple[str, ...]
    document: str


def opened(page: Path, profile: Path, dark: bool = False) -> Seen:
    """The page without a network, when its scripts have run."""
    done = _run(page, profile, dark, "--virtual-time-budget=6000", "--dump-dom")
    return Seen(tuple(line for line in done.stderr.splitlines() if "CONSOLE" in line), done.stdout)


def picture(page: Path, profile: Path, place: Path, width: int, height: int, dark: bool = False) -> bytes:
    """A screenshot as PNG, also at `place`."""
    size = f"--window-size={width},{height}"
    _run(page, profile, dark, "--virtual-time-budget=6000", size, f"--screenshot={place}")
    return place.read_bytes()


def plots_of(document: str) -> list[str]:
    """The SVG of each plot of a document."""
    return re.findall(r'<svg[^>]*class="marks".*?</svg>', document, re.DOTALL)


def _run(page: Path, profile: Path, dark: bool, *flags: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    # What it would load of the network it does not find.
    offline = ("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}")
    mode = ("--blink-settings=preferredColorScheme=0",) if dark else ("--blink-settings=preferredColorScheme=1",)
    command = [CHROMIUM, *FLAGS, *offline, *mode, *flags, page.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=240)
