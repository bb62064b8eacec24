"""The C source of an opaque Block of any size, out of those at several: numbers that differ become expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from modelc.ir.explain import Explained, Unexplained
from modelc.ir.expr import Size
from modelc.ir.in_c import FUNCTIONS, in_c
from modelc.ir.sizes import Sizes

NUMBER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")  # by itself: no part of a name, and no part of a real number
PARAMETERS = "uint8_t *scratch, int32_t begin"


def opaque_samples(free: Sequence[Size]) -> list[Sizes]:
    """Sizes at which sources are looked at: the most, and others in each size alone."""
    largest = {size.name: size.most for size in free}
    samples: list[Sizes] = [largest]
    for size in free:
        middle = (size.least + size.most) // 2
        others = (size.most - 1, size.most - 2, middle, middle + 1, middle - 5, size.most - 16)
        samples += [{**largest, size.name: n} for n in dict.fromkeys(others) if size.least < n < size.most and n > 1]
    return samples


def general_source(sources: Sequence[str], explained: Explained) -> str:
    """The source that the `sources` at the samples are. It takes the sizes as numbers before the scratch. Raises
    Unexplained."""
    parts = [NUMBER.split(source) for source in sources]
    if len({len(x) for x in parts}) > 1:
        raise Unexplained("its source has another structure at other sizes")
    names = {size.name: f"size_{size.name}" for size in explained.sizes}
    general = []
    for column in zip(*parts, strict=True):
        if len(set(column)) == 1:
            general.append(column[0])
        elif all(text.isdecimal() for text in column):
            general.append(in_c(explained.number(tuple(map(int, column))), names))
        else:
            raise Unexplained("its source has other words at other sizes")
    taken = "".join(f"intptr_t {name}, " for name in names.values())
    text = "".join(general).replace(PARAMETERS, taken + PARAMETERS)
    unused = "".join(f"    (void){name};\n" for name in names.values())
    head, brace, body = text.partition("int32_t end) {\n")
    if any(re.search(rf"(?<!intptr_t ){name}\b", head) for name in names.values()):
        raise Unexplained("functions that its kernel calls have other numbers at other sizes")
    return f"#include <stdint.h>\n\n{FUNCTIONS}{head}{brace}{unused}{body}"
