"""What was faster for one Task is tried for others whose Sketches have the same name."""

from __future__ import annotations

from made_up_machines import explored, space_of
from three_ways import task_of

from modelc.measure.measurement import Measurement
from modelc.tune.search.evolve import Evolve
from modelc.tune.search.transfer_tuning import Transferred

ONE, LIKE = (task_of("MatMul", {}, [(m, 64), (64, n)], (1,)).canonical() for m, n in ((24, 96), (50, 640)))
OTHER = task_of("Softmax", {"axis": -1}, [(8, 32)]).canonical()


def took(relative: float) -> Measurement:
    return Measurement("ok", "", 1e-3 * relative, 0.0, 9, 1e-3)


def test_the_nearest_points_of_like_tasks_are_proposed_first() -> None:
    space, like = space_of(ONE), space_of(LIKE)
    transferred, times = Transferred(), [0.9, 0.5, 1.2, 0.99]  # the last two are not faster, or by too little
    individuals = explored(space, len(times))
    transferred.add(ONE.hash, [(one, took(time)) for one, time in zip(individuals, times, strict=True)])
    rows = transferred.rows(like)
    assert len(rows) == 2
    for row, individual in zip(rows, (individuals[1], individuals[0]), strict=True):
        sketch = like.sketches[row[0]]
        assert sketch.name == individual.sketch.name
        here, there = sketch.values(like.points(row[0], row[None, :])[0]), individual.knobs
        for knob in sketch.knobs:
            whole = [value for value in knob.values if isinstance(value, int)]
            wanted = there[knob.name]
            if isinstance(wanted, int) and whole:
                assert here[knob.name] == max([value for value in whole if value <= wanted] or [min(whole)])
    assert not len(transferred.rows(space)), "a Task knows its own"
    assert not len(transferred.rows(space_of(OTHER))), "there is no Sketch of that name"

    explorer = Evolve(like, seed=1)
    explorer.built = like.empty
    explorer.transferred = transferred
    legal = [row for row in rows if like.legal(row[None, :])[0]]
    assert legal and [proposed.row.tolist() for proposed in explorer.propose(8)[: len(legal)]] == [
        row.tolist() for row in legal
    ]


def test_a_task_gives_its_few_fastest_and_what_it_finds_later() -> None:
    space, transferred = space_of(ONE), Transferred()
    individuals = explored(space, 6)
    explorer = Evolve(space)
    explorer.transferred = transferred
    times = [0.95, 0.6, 0.9, 0.7, 0.85, 0.8]
    explorer.learn([(one, took(time)) for one, time in zip(individuals, times, strict=True)])
    assert [relative for relative, _ in transferred.fastest[ONE.hash]] == [0.6, 0.7, 0.8, 0.85]
    explorer.learn([(individuals[0], Measurement("crashed", "it died")), (individuals[1], took(0.3))])
    assert [relative for relative, _ in transferred.fastest[ONE.hash]] == [0.3, 0.6, 0.7, 0.8]
