"""JSON Schema, as far as manifest.schema.json uses it, compiled to functions: a tenth of the time that the
jsonschema package takes, of which a manifest of twenty thousand steps takes much."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], None]

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
ANNOTATIONS = {"$schema", "$defs", "title", "description"}
SHOWN = 100  # characters of a value that is refused


class Mismatch(Exception):
    """What is wrong with a value, and the keys and indices that lead to it, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str | int] = []

    @property
    def place(self) -> str:
        return "/".join(str(part)[:SHOWN] for part in reversed(self.path)) or "the whole"


def compiled(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> Check:
    """A function that raises Mismatch where a value does not conform. Raises ValueError for a schema with keywords that
    are not known here."""
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    if "$ref" in schema:
        return compiled(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    unknown = schema.keys() - KEYWORDS.keys() - ANNOTATIONS
    if unknown:
        raise ValueError(f"unknown keywords in the schema: {sorted(unknown)}")
    made = dict.fromkeys(make for keyword, make in KEYWORDS.items() if keyword in schema)
    checks = [make(schema, definitions) for make in made]
    if len(checks) == 1:
        return checks[0]

    def check(value: Any) -> None:
        for conforms in checks:
            conforms(value)

    return check


def _refusing(is_wrong: Callable[[Any], bool], reason: str) -> Check:
    def check(value: Any) -> None:
        if is_wrong(value):
            raise Mismatch(f"{_shown(value)} {reason}")

    return check


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Check:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    classes = frozenset(kind for name in names for kind in TYPES[name])
    return _refusing(lambda value: type(value) not in classes, f"is not of type {' or '.join(names)}")


def _values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Check:
    allowed = schema["enum"] if "enum" in schema else [schema["const"]]
    kinds = {(type(value), value) for value in allowed}
    return _refusing(
        lambda value: isinstance(value, dict | list) or (type(value), value) not in kinds, f"is not one of {allowed}"
    )


def _bounds(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Check:
    least, most = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    return _refusing(
        lambda value: type(value) in (int, float) and not least <= value <= most, f"is not between {least} and {most}"
    )


def _pattern(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Check:
    match = re.compile(schema["pattern"].removeprefix("^").removesuffix("$")).fullmatch
    return _refusing(lambda value: type(value) is str and not match(value), f"does not match {schema['pattern']}")


def _items(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Check:
    first = [compiled(prefix, definitions) for prefix in schema.get("prefixItems", ())]
    further = compiled(schema.get("items", {}), definitions)
    least, most = schema.get("minItems", 0), schema.get("maxItems", float("inf"))

    def check(value: Any) -> None:
        if type(value) is not list:
            return
        if not least <= len(value) <= most:
            raise Mismatch(f"it has {len(value)} items; {least} to {most} are possible")
        index = 0
        try:
            for index, item in enumerate(value):
                (first[index] if index < len(first) else further)(item)
        except Mismatch as wrong:
            wrong.path.append(index)
            raise

    return check


def _properties(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Check:
    checks = {name: compiled(value_schema, definitions) for name, value_schema in schema.get("properties", {}).items()}
    required = schema.get("required", ())
    others = schema.get("additionalProperties", {})
    other = compiled(others, definitions) if isinstance(others, dict) else _unknown
    names = compiled(schema["propertyNames"], definitions) if "propertyNames" in schema else None

    def check(value: Any) -> None:
        if type(value) is not dict:
            return
        for name in required:
            if name not in value:
                raise Mismatch(f"'{name}' is a required property")
        if names is not None:
            for name in value:
                names(name)
        name = ""
        try:
            for name, item in value.items():
                checks.get(name, other)(item)
        except Mismatch as wrong:
            wrong.path.append(name)
            raise

    return check


def _unknown(value: Any) -> None:
    raise Mismatch("no such property is known")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"an {'object' if isinstance(value, dict) else 'array'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


KEYWORDS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Check]] = {
    "type": _type,
    "pattern": _pattern,
    **dict.fromkeys(("const", "enum"), _values),
    **dict.fromkeys(("minimum", "maximum"), _bounds),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), _items),
    **dict.fromkeys(("properties", "required", "additionalProperties", "propertyNames"), _properties),
}
