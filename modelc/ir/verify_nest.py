"""The verifier of Nests (TensorIR, section 3.3): loops, storage, bindings, producers and consumers, parallel loops.

What is compared are exact sets of points (points.py). Sets too large to enumerate, and whatever depends on data, are
not checked. A consumer's elements have to be written before it in the same iteration of the loops that both are in, or
outside of them: storage is not carried from one iteration of a loop to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelc.ir.block import Block, OpaqueBlock, Task
from modelc.ir.check import fail, inside, static, unsure
from modelc.ir.expr import Const, Expr, Load, Var, loads, substitute, variables
from modelc.ir.nest import Call, For, Leaf, Nest
from modelc.ir.points import Box, Image, TooLarge, boxes, disjoint, image, remainder
from modelc.ir.steps import Place, Step, plain, steps_of


def verify_nest(nest: Nest, task: Task | None = None, where: str = "") -> None:
    """Checks a Nest; with the Task that it schedules (after its Candidate's stages) also that every Block runs exactly
    once for each point of its domain."""
    where = f"{where}: nest {nest.name}" if where else f"nest {nest.name}"
    for name in nest.outputs:
        if name not in {p.name for p in nest.params}:
            fail(where, f"output {name!r} is no param")
    steps = steps_of(nest, where)
    for step in steps:
        _step(step, nest)
    empty = {p.name for p in nest.params if 0 in p.shape}
    for name in nest.outputs:
        if name not in empty and not any(w.buffer == name for s in steps for w in s.writes()):
            fail(where, f"output {name} is never written")
    if task is not None:
        _blocks(steps, nest, task, where)
    given = {p.name for p in nest.params if p.name not in nest.outputs} | set(task.inputs if task else ())
    images: Known = {}
    for step in steps:
        _parallel(step)
        for load, guards in step.reads():
            if load.buffer not in given:
                _defined(step, load, guards, steps, images)


# --- one step -----------------------------------------------------------------------------------------------------


def _step(step: Step, nest: Nest) -> None:
    """Accesses stay in their regions; registers are indexed by constants; inputs are not written."""
    unrolled = {x.var for x in step.loops if x.tag in ("unroll", "vector") or x.intrinsic or x.extent == 1}
    for write in step.writes():
        place = step.storage[write.buffer]
        if place.scope == "param" and write.buffer not in nest.outputs:
            fail(step.where, f"{write.buffer} is written, and is no output")
    if isinstance(step.what, Call):
        return
    for load, guards in [*((w, step.what.where) for w in step.what.writes), *step.reads()]:
        place = step.storage[load.buffer]
        verb = "written" if load in step.what.writes else "read"
        if place.scope == "register" and (loose := sorted(variables(load) - unrolled)):
            fail(step.where, f"register {plain(load)} is indexed by {plain(loose[0])}, which is not unrolled")
        conditions = (*step.branches, *guards)
        inside(load, place.region.shape, step.ranges, conditions, verb, step.where, plain(load))


def _parallel(step: Step) -> None:
    """Iterations of parallel loops write elements of their own."""
    parallel = [loop.var for loop in step.loops if loop.tag == "parallel" and loop.extent != 1]
    if not parallel:
        return
    for write in step.writes():
        if step.storage[write.buffer].depth > 0 or any(loads(i) for i in write.indices):
            continue
        shown = plain(write)
        try:
            written = image([*map(Var, parallel), *write.indices], step.grid(), static(step.guards))
            alone = image(write.indices, step.grid(), static(step.guards))
        except TooLarge:
            continue
        if not written.empty and _count(written) != _count(alone):
            missing = [var for var in parallel if var not in variables(write)]
            times, vars = ("all", missing[:1]) if missing else ("two", parallel)
            named = f"the parallel loop{'s' * (len(vars) > 1)} {', '.join(map(plain, vars))}"
            fail(step.where, f"{times} iterations of {named} write one element of {shown}")


def _count(i: Image) -> int:
    result = 1
    for f in i.factors:
        result *= len(f.values)
    return result


# --- producers and consumers --------------------------------------------------------------------------------------


def _shared(a: Step, b: Step) -> int:
    """How many loops both steps are in."""
    pairs = zip(a.loops, b.loops, strict=False)
    return next((k for k, (x, y) in enumerate(pairs) if x != y), min(len(a.loops), len(b.loops)))


Known = dict[tuple[object, ...], Image]  # what _reached() has found for its arguments


def _reached(
    step: Step, access: Load, guards: tuple[Expr, ...], common: Sequence[For], shared: int, images: Known
) -> Image:
    """The elements of an access for each iteration of the loops `common`, of which the step is in the first `shared`
    (of the others it serves every iteration)."""
    key = (step.number, access, guards, tuple([x.var for x in common]), shared)
    reached = images.get(key)
    if reached is None:
        free = {f"{x.var}*": x.extent for x in common[shared:]}
        outer = [Var(x.var) for x in common[:shared]] + [Var(name) for name in free]
        grid, conditions = {**step.grid(), **free}, static((*step.branches, *guards))
        reached = images[key] = image([*outer, *access.indices], grid, conditions)
    return reached


def _defined(step: Step, read: Load, guards: tuple[Expr, ...], steps: Sequence[Step], images: Known) -> None:
    """Whatever is read was written before, and reductions that others make of it are complete."""
    place = step.storage[read.buffer]
    writers = [(s, w) for s in steps for w in s.writes() if s.storage[w.buffer].number == place.number]
    before = [(s, w) for s, w in writers if s.number < step.number]
    sources = [(s, w) for s, w in before if isinstance(s.what, Call) or s.what.part != "update"]
    name = read.buffer
    if not sources:
        fail(step.where, f"{name} is read before it is written")
    if any(loads(i) for _, w in [*writers, (step, read)] for i in w.indices):
        return
    try:
        near = [(s, w) for s, w in sources if not _elsewhere(w, read)]
        missing = _missing(step, read, guards, near or sources, images)
        if missing:
            fail(step.where, f"element {missing} of {name} is read before it is written")
        if isinstance(step.what, Call) or step.what.part == "assign":
            updates = [(s, w) for s, w in writers if isinstance(s.what, Leaf) and s.what.part == "update"]
            updates = [(s, w) for s, w in updates if not _elsewhere(w, read)]
            _complete(step, read, guards, updates, place, images)
    except TooLarge:
        return


Writer = tuple[Step, Load]


def _elsewhere(a: Load, b: Load) -> bool:
    """Whether the accesses differ in an index that is a number, as do those of the steps of an unrolled loop over time:
    no more has to be known of them."""
    pairs = zip(a.indices, b.indices, strict=False)
    return any(isinstance(x, Const) and isinstance(y, Const) and x.value != y.value for x, y in pairs)


def _missing(
    step: Step, read: Load, guards: tuple[Expr, ...], sources: Sequence[Writer], images: Known
) -> list[int] | None:
    """An element that is read and that none of `sources` writes in time."""
    depth = max(_shared(s, step) for s, _ in sources)
    common = step.loops[:depth]
    wanted = _reached(step, read, guards, common, depth, images)
    written = [_reached(s, w, _conditions(s), common, _shared(s, step), images) for s, w in sources]
    frame, (box, *parts) = boxes([wanted, *written], depth + len(read.indices))
    left = remainder(box, parts)
    return list(frame.point(left[0])[depth:]) if left else None


def _conditions(step: Step) -> tuple[Expr, ...]:
    return step.what.where if isinstance(step.what, Leaf) else ()


def _complete(
    step: Step, read: Load, guards: tuple[Expr, ...], updates: Sequence[Writer], place: Place, images: Known
) -> None:
    """No update of what is read comes later: not in the text, nor in a later iteration of a loop around both."""
    if not updates:
        return
    depth = max(_shared(s, step) for s, _ in updates)
    common = step.loops[:depth]
    for s, w in updates:
        for loop in step.loops[place.depth : _shared(s, step)]:
            if loop.extent > 1 and loop.var not in variables(w):
                fail(step.where, f"{read.buffer} is read while {s.what.block} still reduces over {plain(loop.var)}")
    wanted = _reached(step, read, guards, common, depth, images)
    earlier = [(s, w) for s, w in updates if s.number < step.number]
    done = [_reached(s, w, _conditions(s), common, _shared(s, step), images) for s, w in earlier]
    ever = [_reached(s, w, _conditions(s), common, min(place.depth, depth), images) for s, w in updates]
    frame, (box, *parts) = boxes([wanted, *done, *ever], depth + len(read.indices))
    for left in remainder(box, parts[: len(done)]):
        for other in parts[len(done) :]:
            if not disjoint(left, other):
                element = list(frame.point(left)[depth:])
                fail(step.where, f"element {element} of {read.buffer} is read before its reduction is complete")


# --- bindings -----------------------------------------------------------------------------------------------------


def _blocks(steps: Sequence[Step], nest: Nest, task: Task, where: str) -> None:
    """Every Block of the Task runs, exactly once for each point of its domain."""
    names = {p.name for p in nest.params}
    for name in (*task.inputs, *task.outputs):
        if name not in names:
            fail(where, f"{name} of task {task.name} is no param")
    blocks = {b.name: b for b in task.blocks}
    for step in steps:
        block = blocks.get(step.what.block) or fail(step.where, f"task {task.name} has no block {step.what.block!r}")
        if isinstance(block, OpaqueBlock) != isinstance(step.what, Call):
            fail(step.where, f"block {block.name} is {'' if isinstance(block, OpaqueBlock) else 'not '}opaque")
        if isinstance(step.what, Leaf) and isinstance(block, Block):
            _part(step, step.what, block)
    for block in task.blocks:
        own = [s for s in steps if s.what.block == block.name]
        if not own and not (isinstance(block, Block) and any(i.extent == 0 for i in block.spatial)):
            fail(where, f"block {block.name} has no leaf")
        if isinstance(block, OpaqueBlock):
            if len(own) > 1 or own[0].loops:
                fail(where, f"block {block.name} runs more than once")
            continue
        groups: dict[tuple[int, ...], list[Step]] = {}
        for s in own:
            groups.setdefault(tuple(s.storage[w.buffer].number for w in s.writes()), []).append(s)
        for group in groups.values():
            try:
                _once(group, block, task, f"{where}, block {block.name}")
            except TooLarge:
                continue


def _part(step: Step, leaf: Leaf, block: Block) -> None:
    expected = ("init", "update") if block.reduction else ("assign",)
    if leaf.part not in expected or leaf.aggregation != block.aggregation:
        fail(step.where, f"block {block.name} is {block.aggregation}, in parts {' and '.join(expected)}")
    iters = [i.name for i in (block.spatial if leaf.part == "init" else block.iters)]
    if sorted(name for name, _ in leaf.binding) != sorted(iters):
        fail(step.where, f"binds [{', '.join(name for name, _ in leaf.binding)}], expected [{', '.join(iters)}]")


def _once(steps: Sequence[Step], block: Block, task: Task, where: str) -> None:
    """Bindings of a Block's leaves over one place: independent, in the domain, each point exactly once. Where the place
    is allocated inside loops, for each of their iterations: the elements are those that `init` reaches there."""
    places = [steps[0].storage[w.buffer] for w in steps[0].writes()]
    depth, allocated = min(p.depth for p in places), all(p.allocated for p in places)
    expected = ("init", "update") if block.reduction else ("assign",)
    outer = steps[0].loops[:depth]
    spatial, reduction = [i.name for i in block.spatial], [i.name for i in block.reduction]
    parts = {part: [s for s in steps if isinstance(s.what, Leaf) and s.what.part == part] for part in _PARTS}
    for part, own in parts.items():
        iters = spatial if part == "init" else [*spatial, *reduction]
        images = [_points(s, outer, iters, block, part) for s in own]
        for s, points in zip(own, images, strict=True):
            _domain(s, points, iters, block, depth, allocated)
        if part == "update" and allocated:
            images += [_reduced(s, outer, spatial, block) for s in parts["init"]]
        if not allocated and (own or part in expected):
            images.append(_whole(iters, block, task, part))
        if not images:
            continue
        columns = len(outer) + len(iters)
        frame, found_boxes = boxes(images, columns)
        done, wanted = found_boxes[: len(own)], found_boxes[len(own) :]
        _apart(own, done)
        for box in wanted:
            left = remainder(box, done)
            if left:
                point = dict(zip(iters, frame.point(left[0])[len(outer) :], strict=True))
                fail(where, f"{part} never runs at {', '.join(f'{k}={v}' for k, v in point.items()) or 'its point'}")


_PARTS = ("assign", "init", "update")


def _points(step: Step, outer: Sequence[For], iters: Sequence[str], block: Block, part: str) -> Image:
    assert isinstance(step.what, Leaf)
    binding = dict(step.what.binding)
    conditions = [] if part == "init" else [substitute(c, binding) for c in block.where]
    points = image(
        [*(Var(x.var) for x in outer), *(binding[i] for i in iters)],
        step.ranges,
        static((*step.guards, *conditions)),
    )
    if not points.injective:
        shown = ", ".join(f"{name}={plain(e)}" for name, e in step.what.binding)
        fail(step.where, f"the binding [{shown}] is not independent: two iterations run one point")
    return points


def _domain(step: Step, points: Image, iters: Sequence[str], block: Block, depth: int, allocated: bool) -> None:
    """Bound values stay in the Block's domain; those of spatial iterators may leave it for storage allocated inside."""
    for k, name in enumerate(iters):
        if points.empty or (allocated and name in {i.name for i in block.spatial}):
            continue
        low, high = points.limits[depth + k]
        if low < 0 or high >= block.ranges[name]:
            assert isinstance(step.what, Leaf)
            value = plain(dict(step.what.binding)[name])
            fail(step.where, f"{name}={value} runs over {low}..{high}, and the domain is {name}:{block.ranges[name]}")


def _apart(steps: Sequence[Step], covered: Sequence[Box]) -> None:
    for k, a in enumerate(covered):
        for s, b in zip(steps[:k], covered[:k], strict=True):
            if not disjoint(a, b):
                fail(steps[k].where, f"runs points that {s.where.rpartition(', ')[2]} has run before")


def _whole(iters: Sequence[str], block: Block, task: Task, part: str) -> Image:
    """The domain: the points at which the Block's conditions hold; for `init` those that have an element."""
    ranges = {name: block.ranges[name] for name in iters}
    conditions = static(block.where)
    if part == "init":
        conditions = ()
        for w in block.writes:
            conditions += unsure(w, task.buffer(w.buffer).shape, ranges)
    return image([Var(name) for name in iters], ranges, conditions)


def _reduced(step: Step, outer: Sequence[For], spatial: Sequence[str], block: Block) -> Image:
    """All points of the reduction for what one `init` begins."""
    assert isinstance(step.what, Leaf)
    binding = dict(step.what.binding) | {i.name: Var(f"{i.name}+") for i in block.reduction}
    ranges = step.ranges | {f"{i.name}+": i.extent for i in block.reduction}
    conditions = [substitute(c, binding) for c in block.where]
    at = Load("", tuple(binding[name] for name in spatial))
    conditions += unsure(at, [block.ranges[name] for name in spatial], ranges)
    names = [*spatial, *(i.name for i in block.reduction)]
    exprs = [*(Var(x.var) for x in outer), *(binding[name] for name in names)]
    return image(exprs, ranges, static((*step.guards, *conditions)))
