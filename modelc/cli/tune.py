"""modelc tune"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelc.cli.importing import import_quickly
from modelc.cli.options import PATH, asked, no_package, request_options
from modelc.cli.output import following, print_json, say
from modelc.tune.request import TuneRequest

if TYPE_CHECKING:
    from modelc.tune.command import TuneResult

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@click.command()
@click.argument(
    "models",
    metavar="MODEL.onnx...",
    type=PATH,
    nargs=-1,
    required=True,
    callback=no_package("modelc tune MODEL.onnx -o PKG.modelc"),
)
@request_options(TuneRequest)
@click.option(
    "--objective",
    metavar="NAME|MODULE:FUNCTION",
    default="latency",
    show_default=True,
    help="latency, targets, geomean, early-stop, or a Python function, which is executed: MODULE:FUNCTION or "
    "FILE.py:FUNCTION takes milliseconds by model and returns what is to become small.",
)
@click.option("--goal", "goals", metavar="[MODEL=]MS", multiple=True, help="Of targets: enough for a model.")
@click.option("--patience", metavar="N", type=click.IntRange(1, 10_000), help="Of early-stop: rounds without gain (5).")
@click.option("--json", "as_json", is_flag=True, help="Print events on stdout, a JSON document on each line.")
def tune(
    models: tuple[Path, ...],
    objective: str,
    goals: tuple[str, ...],
    patience: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compiles models with schedules that were measured to be fast on this machine.

    Ctrl-C ends measuring or timing; packages are made of the best so far. Ends by timing the tuned package, the
    untuned one and ONNX Runtime by turns, and writes the faster package; OUT.tuning.json has the rounds, which modelc
    report shows. Tasks that several models share are tuned once. Every measurement is kept as it comes, and none is
    made again: whatever ended a run, the same command goes on from there, and --budget is what this run may take."""
    import_quickly("modelc.tune.command")
    from modelc.cli.terminal import err
    from modelc.cli.tuning_view import viewing
    from modelc.report.tuning import write_tuning
    from modelc.tune.command import tune_request
    from modelc.tune.search.objectives import Aim
    from modelc.tune.search.standing import Standing

    values = asked(options, *models)
    with viewing() as view:

        def show(text: str) -> None:
            view.stage = text

        def watch(standing: Standing) -> None:
            view.stands(standing)
            if as_json:
                print_json("tune", {"event": "round", **standing.to_json()}, indent=None)

        request = TuneRequest(
            models,
            **values,
            aim=Aim(objective, _goals(goals, models), patience),
            progress=following(show),
            watch=watch if as_json or err.is_terminal else None,
        )
        tunings = tune_request(request)
    for tuning in tunings:
        rounds = write_tuning(tuning)
        if as_json:
            written = {"rounds": None if rounds is None else str(rounds)}
            print_json("tune", {"event": "result", **tuning.to_json(), **written}, indent=None)
        else:
            _show(tuning, rounds, request.threads, request.runner)


def _goals(given: tuple[str, ...], models: tuple[Path, ...]) -> dict[str, float]:
    """Milliseconds by model: MODEL=MS, or MS where there is one model."""
    milliseconds: dict[str, float] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        name = name if equals or len(models) > 1 else models[0].stem
        if not name or name in milliseconds or not _NUMBER.fullmatch(number):
            raise click.BadParameter(
                f"{text[:200]!r}: expected MODEL=MILLISECONDS once for each model, such as {models[0].stem}=2.5",
                param_hint="--goal",
            )
        milliseconds[name] = float(number)
    return milliseconds


def _show(tuning: TuneResult, rounds: Path | None, threads: int, runner: str) -> None:
    """What became of one model, for people."""
    search = tuning.search
    say(f"{tuning.path}")
    if rounds is not None:
        say(f"  rounds        {rounds}; to look at: modelc report {tuning.path}")
    rate = f"{search.rate:.1f} a second; search took {100 * search.share:.0f} % of one processor's time"
    say(f"  measured      {search.trials} candidates in {search.seconds:.1f} s ({rate}); ended by: {search.ended}")
    if tuning.database is not None:
        counts = f"{tuning.earlier_records} measurements were known, {search.trials} were added"
        say(f"  database      {counts} ({tuning.database})")
    if tuning.tuned:
        say(f"  chosen        {tuning.changed} of {tuning.tasks} kernels otherwise than without tuning")
        if tuning.alternative:
            say(f"  layouts, cuts otherwise: {tuning.alternative}")
    say(f"  time          {tuning.times.sentence(threads) or f'not that of the whole: kernels ran through {runner}'}")
    if not tuning.tuned:
        together = "together the faster candidates are not faster"
        why = together if tuning.times.tuned_ms else "no candidate was faster by more than the noise"
        say(f"  nothing gained: {why}; the package is the untuned one")
    say(f"  verification  {tuning.report.sentence() if tuning.report else 'none'}")
    for note in tuning.notes:
        say(f"  note          {note}")
