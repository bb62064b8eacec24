"""The ways to compute each kind of Task.

listing.py          every Sketch that a Task has
prepare.py          what is done to a Task before its contraction is tiled: padding, packing, factored dimensions
staging.py          operands and results that are stored across their channels, copied into an order of ours
vectorized.py       units that are vectors
tensorized.py       units that are applications of an intrinsic
tiled_rules.py      the knobs that rules choose: register tile, chunk, parallel loop
tiled_candidate.py  the Candidate that knobs make
contraction.py      the Sketch of these
parts.py            long sums in parts, in turn or side by side: the same Sketch of another Task
fusing.py           a window's taps fused with its channels, for intrinsics that channels alone do not fill
products.py         what Sketches of derived products have in common: chunks of rows, register tiles
strassen.py         Strassen's products: where sums of parts run around them
winograd.py         Winograd: where transforms run around the products; winograd_roles.py, winograd_traffic.py
attention_loops.py  the loops of attention around a tile of query rows; attention_roles.py, attention_units.py
attention.py        attention by tiles of query rows, on vectors or units; attention_keys.py
attention_parts.py  the same over keys in parts, in turn or side by side: the online softmax
chain.py            reductions one after the other, tile by tile of the last; chain_links.py
reductions.py       rows, phases and columns: their knobs, which choose stages too
rows.py             several reductions over common rows: softmax, normalisations
phases.py           reductions of whole tensors, of few long rows, of columns
lanes.py            reductions of contiguous elements, split over vector lanes
elementwise.py      maps alone: vectors, chunks, the parallel loop and the tile of a transposition
maps.py             loops of a map
clean.py            the clean-up that every Task gets first
"""
