"""Layouts: sequences of primitives applied to a tensor's logical dimensions (ALT, section 4.1).

Each primitive maps a shape to a shape and indices to indices (`apply`, ALT's S_X), and back (`invert`, S_X^-1):

    split(dim, f1, f2, ...)     dim -> (dim / (f1*f2...), f1, f2, ...)
    reorder(p0, p1, ...)        new dimension i is old dimension p_i
    fuse(dim, n)                n dimensions from dim on become one
    unfold(dim, tile, stride)   dim -> (tiles, tile): overlapping tiles, stride <= tile (ALT's equation 2)
    pad(dim, before, after)     dim grows by `before` and `after`
    store_at(dim, n)            dim grows by n rows at its end, where another tensor is stored

A tensor access in logical space becomes `layout.apply(indices, shape)` in physical space: definitions never change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from modelc.ir.expr import Expr, op

Shape = tuple[int, ...]
Indices = tuple[Expr, ...]
LARGEST = (1 << 31) - 1  # argument of a primitive


@dataclass(frozen=True)
class Primitive:
    """One layout primitive: its name and whole-number arguments, e.g. ("split", (1, 16))."""

    name: str
    args: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = {"split": 2, "reorder": 0, "fuse": 2, "unfold": 3, "pad": 3, "store_at": 2}
        if self.name not in counts:
            raise ValueError(f"unknown layout primitive {self.name!r}; known are {', '.join(counts)}")
        count, more = counts[self.name], self.name in ("split", "reorder")
        if len(self.args) < count or (len(self.args) > count and not more):
            raise ValueError(f"{self}: {self.name} takes {'at least ' * more}{count} numbers")
        if max(self.args, default=0) > LARGEST:
            raise ValueError(f"{self.name} has an argument above {LARGEST}")
        if min(self.args, default=0) < 0 or (self.name in ("split", "fuse") and min(self.args[1:]) < 1):
            raise ValueError(f"{self}: dimensions and pads are 0 or more, factors and counts 1 or more")

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"

    def shape(self, shape: Shape) -> Shape:
        """The shape after this primitive. Raises ValueError if it does not fit."""
        if self.name == "reorder":
            if sorted(self.args) != list(range(len(shape))):
                raise ValueError(f"{self} is no permutation of {len(shape)} dimensions")
            return tuple(shape[p] for p in self.args)
        dim = self.args[0]
        if not 0 <= dim < len(shape):
            raise ValueError(f"{self} names dimension {dim} of a tensor of {len(shape)}")
        before, extent, after = shape[:dim], shape[dim], shape[dim + 1 :]
        if self.name == "split":
            inner = prod(self.args[1:])
            if extent % inner:
                raise ValueError(f"{self} does not divide {extent}; pad first")
            return (*before, extent // inner, *self.args[1:], *after)
        if self.name == "fuse":
            n = self.args[1]
            if dim + n > len(shape):
                raise ValueError(f"{self} goes beyond the last of {len(shape)} dimensions")
            return (*before, prod(shape[dim : dim + n]), *shape[dim + n :])
        if self.name == "unfold":
            _, tile, stride = self.args
            if not 0 < stride <= tile <= extent:
                raise ValueError(f"{self} needs 0 < stride <= tile <= {extent}")
            return (*before, -(-(extent - tile) // stride) + 1, tile, *after)
        grown = self.args[1] + self.args[2] if self.name == "pad" else self.args[1]
        return (*before, extent + grown, *after)

    def apply(self, indices: Indices, shape: Shape) -> Indices:
        """Logical indices of a tensor of `shape` -> indices after this primitive. Of an unfolded element's several
        places the first tile that holds it is given."""
        if self.name == "reorder":
            return tuple(indices[p] for p in self.args)
        dim = self.args[0]
        before, i, after = indices[:dim], indices[dim], indices[dim + 1 :]
        if self.name == "split":
            parts: list[Expr] = []
            for factor in reversed(self.args[1:]):
                parts.append(op("mod", i, factor))
                i = op("floordiv", i, factor)
            return (*before, i, *reversed(parts), *after)
        if self.name == "fuse":
            n = self.args[1]
            fused = indices[dim]
            for k in range(1, n):
                fused = op("add", op("mul", fused, shape[dim + k]), indices[dim + k])
            return (*before, fused, *indices[dim + n :])
        if self.name == "unfold":
            _, tile, stride = self.args
            last = -(-(shape[dim] - tile) // stride)
            t = op("min", op("max", op("floordiv", op("add", op("sub", i, tile), stride), stride), 0), last)
            return (*before, t, op("sub", i, op("mul", t, stride)), *after)
        return (*before, op("add", i, self.args[1]) if self.name == "pad" else i, *after)

    def invert(self, indices: Indices, shape: Shape) -> Indices:
        """Indices after this primitive -> logical indices of the tensor of `shape` before it."""
        if self.name == "reorder":
            logical: list[Expr] = [indices[0]] * len(indices)
            for new, old in enumerate(self.args):
                logical[old] = indices[new]
            return tuple(logical)
        dim = self.args[0]
        before = indices[:dim]
        if self.name == "split":
            n = len(self.args)
            whole = indices[dim]
            for factor, part in zip(self.args[1:], indices[dim + 1 : dim + n], strict=True):
                whole = op("add", op("mul", whole, factor), part)
            return (*before, whole, *indices[dim + n :])
        if self.name == "fuse":
            n = self.args[1]
            parts: list[Expr] = []
            whole = indices[dim]
            for extent in reversed(shape[dim + 1 : dim + n]):
                parts.append(op("mod", whole, extent))
                whole = op("floordiv", whole, extent)
            return (*before, whole, *reversed(parts), *indices[dim + 1 :])
        if self.name == "unfold":
            whole = op("add", op("mul", indices[dim], self.args[2]), indices[dim + 1])
            return (*before, whole, *indices[dim + 2 :])
        i = indices[dim]
        return (*before, op("sub", i, self.args[1]) if self.name == "pad" else i, *indices[dim + 1 :])


@dataclass(frozen=True)
class Layout:
    """How a tensor is stored: primitives applied in order; the result is row-major. Empty: as its logical shape."""

    primitives: tuple[Primitive, ...] = ()

    def shape(self, shape: Sequence[int]) -> Shape:
        """The physical shape of a tensor of logical `shape`. Raises ValueError if a primitive does not fit."""
        result = tuple(shape)
        for primitive in self.primitives:
            result = primitive.shape(result)
        return result

    def apply(self, indices: Sequence[Expr], shape: Sequence[int]) -> Indices:
        """S_X: logical indices -> physical indices."""
        result, extents = tuple(indices), tuple(shape)
        for primitive in self.primitives:
            result, extents = primitive.apply(result, extents), primitive.shape(extents)
        return result

    def invert(self, indices: Sequence[Expr], shape: Sequence[int]) -> Indices:
        """S_X^-1: physical indices -> logical indices of a tensor of logical `shape`."""
        shapes = [tuple(shape)]
        for primitive in self.primitives:
            shapes.append(primitive.shape(shapes[-1]))
        result = tuple(indices)
        for primitive, before in zip(reversed(self.primitives), reversed(shapes[:-1]), strict=True):
            result = primitive.invert(result, before)
        return result

    def of_part(self, shape: Sequence[int]) -> Layout:
        """The layout of a box of the tensor, of `shape`: a pad whose dimension is split next fills up the last tile of
        the box. Raises ValueError if a primitive does not fit."""
        primitives, extents = list[Primitive](), tuple(shape)
        for place, primitive in enumerate(self.primitives):
            following = self.primitives[place + 1 : place + 2]
            if primitive.name == "pad" and [p.name for p in following] == ["split"]:
                dim, before, _ = primitive.args
                if following[0].args[0] == dim:
                    after = -(extents[dim] + before) % prod(following[0].args[1:])
                    primitive = Primitive("pad", (dim, before, after))
            primitives.append(primitive)
            extents = primitive.shape(extents)
        return Layout(tuple(primitives))

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The order of dimensions if the layout is a lone reorder; None if it does anything else."""
        if len(self.primitives) == 1 and self.primitives[0].name == "reorder":
            return self.primitives[0].args
        return None

    def logical_strides(self, physical: tuple[int, ...]) -> tuple[int, ...] | None:
        """Strides of the logical dimensions, where those of the physical ones are `physical`; None where the layout
        does more than reorder them."""
        if not self.primitives:
            return physical
        order = self.permutation
        return None if order is None else tuple(physical[order.index(dim)] for dim in range(len(order)))

    def then(self, name: str, *args: int) -> Layout:
        return Layout((*self.primitives, Primitive(name, args)))

    def __str__(self) -> str:
        return ".".join(map(str, self.primitives)) or "row-major"

    @staticmethod
    def parse(text: str) -> Layout:
        """Reads what str() prints. Raises ValueError."""
        if text == "row-major":
            return Layout()
        primitive = r"(\w+)\(((?:\d+(?:, ?\d+)*)?)\)"
        if not re.fullmatch(rf"{primitive}(\.{primitive})*", text):
            raise ValueError(f"expected a layout such as 'split(1, 16).reorder(0, 1, 2)', found {text!r}")
        primitives = re.findall(primitive, text)
        return Layout(
            tuple(Primitive(name, tuple(int(a) for a in re.findall(r"\d+", args))) for name, args in primitives)
        )


Layouts = Mapping[str, Layout]  # of values by name; what is not listed is row-major


def reordered(*permutation: int) -> Layout:
    """The layout that stores dimensions in another order, e.g. reordered(0, 2, 3, 1) for channels-last."""
    return Layout((Primitive("reorder", permutation),))


def stored_in(order: Sequence[int]) -> Layout:
    """The layout that stores dimensions in `order`: row-major where that is theirs."""
    return Layout() if list(order) == sorted(order) else reordered(*order)


def channels_last(rank: int) -> Layout:
    """The layout that stores dimension 1 innermost."""
    return reordered(0, *range(2, rank), 1)
