"""modelc doctor"""

from __future__ import annotations

import click

from modelc.cli.output import json_option, print_json, progress, say, show


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Looks at what modelc works with on this machine: compilers, emulators, engines, folders. What is missing is named
    with the command that brings it."""
    from modelc.compile.doctor import doctor as examined

    with progress("looking"):
        findings = examined()
    if as_json:
        print_json("doctor", {"findings": [finding.to_json() for finding in findings]})
        return 0 if all(finding.present or not finding.needed for finding in findings) else 1
    rows = [(f.what, "yes" if f.present else "MISSING" if f.needed else "no", f.said) for f in findings]
    show(("", "", ""), rows)
    lacking = [finding for finding in findings if not finding.present and finding.remedy]
    for finding in lacking:
        say(f"{finding.what}: {finding.remedy}")
    missing = [finding.what for finding in findings if finding.needed and not finding.present]
    say(f"missing: {', '.join(missing)}" if missing else "everything that compiling for this machine needs is there")
    return 1 if missing else 0
