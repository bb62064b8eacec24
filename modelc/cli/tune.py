"""modelc tune"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from modelc.cli.fixing import constant_values, dim_sizes, fixing_options, shape_sets
from modelc.cli.output import complain, database_of, database_options, print_event, say
from modelc.cli.tuning_curve import write_curve
from modelc.cli.tuning_view import viewing


@click.command()
@click.argument("model", metavar="MODEL.onnx", type=click.Path(path_type=Path))
@click.option("--target", metavar="NAME|FILE.yaml", help="What this machine is, or the runner (default: native).")
@click.option("--budget", metavar="5m|2000", default="5m", show_default=True, help="Time, or measurements.")
@click.option(
    "--explorer",
    metavar="NAME",
    default="evolve",
    show_default=True,
    help="evolve, ppo, random or construct.",
)
@click.option("-o", "output", metavar="OUT.modelc", type=click.Path(path_type=Path), help="Default: MODEL.modelc here.")
@fixing_options
@click.option("--config", metavar="NAME|FILE.yaml", help="Stages and their parameters (default: default).")
@click.option("--threads", metavar="N", type=click.IntRange(1, 256), default=1, show_default=True, help="Per kernel.")
@click.option("--seed", metavar="N", type=click.IntRange(0, (1 << 32) - 1), default=0, show_default=True)
@click.option(
    "--runner",
    metavar="local|ssh://HOST|COMMAND",
    default="local",
    show_default=True,
    help="What runs kernels: a board, or a command to which a program's path is appended.",
)
@database_options
@click.option("--json", "as_json", is_flag=True, help="Print events on stdout, a JSON document on each line.")
def tune(
    model: Path,
    target: str | None,
    budget: str,
    explorer: str,
    output: Path | None,
    shapes: tuple[str, ...],
    dims: tuple[str, ...],
    constants: tuple[str, ...],
    config: str | None,
    threads: int,
    seed: int,
    runner: str,
    database: Path | None,
    no_database: bool,
    as_json: bool,
) -> None:
    """Compiles a model with schedules that were measured to be fast on this machine.

    Ctrl-C ends measuring; the package is made of the best so far. Ends by timing the tuned package, the untuned one
    and ONNX Runtime by turns, and writes the faster package; OUT.tuning.svg shows what each round was predicted to
    gain. Every measurement is kept as it comes, and none is made again: whatever ended a run, the same command goes on
    from there, and --budget is what this run may take."""
    from modelc.search.standing import Standing
    from modelc.tuning import tune as tune_model

    sets, sizes, values = shape_sets(shapes), dim_sizes(dims), constant_values(constants)
    records = database_of(database, no_database)
    with viewing() as view:

        def follow(stage: str, text: str) -> None:
            view.stage = f"{stage} {text}"
            if not sys.stderr.isatty() and stage not in said:
                complain(f"{stage} {text}")
            said.add(stage)

        def watch(standing: Standing) -> None:
            view.stands(standing)
            if as_json:
                print_event("round", standing.to_json())

        said: set[str] = set()
        found = tune_model(
            model,
            target=target,
            budget=budget,
            explorer=explorer,
            output=output,
            seed=seed,
            shapes=sets,
            dims=sizes,
            constants=values,
            config=config,
            threads=threads,
            database=records,
            progress=follow,
            watch=watch,
            runner=runner,
        )
    drawn = write_curve(found.search.log, found.path)
    if as_json:
        print_event("result", {**found.to_json(), "curve": None if drawn is None else str(drawn)})
        return
    search = found.search
    say(f"{found.path}")
    if drawn is not None:
        say(f"  curve         {drawn}")
    rate = (
        f"{search.trials / search.seconds:.1f} a second, {100 * search.searching / search.seconds:.0f} % of it search"
    )
    say(f"  measured      {search.trials} candidates in {search.seconds:.1f} s ({rate}); ended by: {search.ended}")
    if found.database is not None:
        say(f"  database      {found.known} measurements were known, {search.trials} were added ({found.database})")
    if found.tuned:
        say(f"  chosen        {found.changed} of {found.tasks} kernels otherwise than without tuning")
    say(f"  time          {found.times.sentence(threads) or f'not that of the whole: kernels ran through {runner}'}")
    if not found.tuned:
        together = "together the faster candidates are not faster"
        why = together if found.times.tuned_ms else "no candidate was faster by more than the noise"
        say(f"  nothing gained: {why}; the package is the untuned one")
    say(f"  verification  {found.report.sentence() if found.report else 'none'}")
    for note in found.notes:
        say(f"  note          {note}")
