"""What a model takes and loses for each of several choices, from all layers as fast as they can be to all in float32:
the rows from which --max-drop is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from modelc.compile.trade_off import Row
from modelc.frontend.quantize.layers import weights_of
from modelc.frontend.quantize.recipe import ASYMMETRIC, DYNAMIC, FLOAT16, FLOAT32, INT8, TABLE
from modelc.quantize.decide import WAYS, WEIGHTS, Deciding
from modelc.quantize.drop import rounded

STEPS = 8  # between the ends, of which each is measured
BYTES = {FLOAT32: 4, FLOAT16: 2, INT8: 1, ASYMMETRIC: 1, DYNAMIC: 1, TABLE: 1}  # of a weight


def rows_of(deciding: Deciding) -> list[Row]:
    """The rows of one largest weight."""
    order = deciding.finer(WAYS)
    taken = sorted({round(k * len(order.order) / STEPS) for k in range(STEPS + 1)})
    whole, rows = deciding.before.whole, list[Row]()
    for number, count in enumerate(taken, 1):
        said = f"trade-off, row {number} of {len(taken)}"
        ways = deciding.ways_of(order.taking(count))
        layers = deciding.before.layers
        saved = sum(layers[name] - deciding.ways[ways[name]][name].seconds for name in layers)
        counts = Counter(ways.values())
        rows.append(
            Row(
                sum(counts[way] for way in WEIGHTS),
                counts[DYNAMIC],
                counts[FLOAT16],
                counts[TABLE],
                len(layers),
                rounded(whole - saved),
                rounded(whole / (whole - saved)),
                params_bytes(deciding, ways),
                rounded(deciding.stated(deciding.recipe_of(order.taking(count)), said).share),
            )
        )
    return rows


def params_bytes(deciding: Deciding, ways: Mapping[str, str]) -> int:
    """What the constants of the model take, as its layers store their weights."""
    floats = deciding.trials.floats
    sizes = {layer.name: (layer.weights, weights_of(floats, layer).size) for layer in deciding.trials.layers}
    sizes |= {table.name: (table.table.constant, table.table.numbers.size) for table in deciding.tables}
    narrower = dict[str, int]()  # by constant, which several may read
    for name, way in ways.items():
        constant, size = sizes[name]
        narrower[constant] = size * (BYTES[FLOAT32] - BYTES[way])
    return floats.stored_bytes - sum(narrower.values())


def worth(rows: Collection[Row]) -> tuple[Row, ...]:
    """Those than which none is both as fast and as near, the fastest first."""
    kept = list[Row]()
    for row in sorted(rows, key=lambda row: (row.seconds, row.drop)):
        if not kept or row.drop < kept[-1].drop:
            kept.append(row)
    return tuple(kept)
