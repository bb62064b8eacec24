"""Whether what --json prints is what the published schemas say: nothing is missing, and nothing is in it that its
schema does not name."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from repository import ROOT

FOLDERS = (ROOT / "modelc/cli/schemas", ROOT / "modelc/build")
NAMES = {
    path.name.removesuffix(".schema.json"): path for folder in FOLDERS for path in sorted(folder.glob("*.schema.json"))
}


def check_documents(text: str) -> list[str]:
    """The schemas of the documents in `text`, one or one on each line. Raises an error for the first that does not
    fit."""
    names = []
    for document in _documents(text):
        assert {"schema", "version"} <= document.keys(), f"a document without schema and version: {text[:200]}"
        _validator(NAMES[document["schema"]]).validate(document)
        names.append(document["schema"])
    return names


def _documents(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


@cache
def _validator(path: Path) -> Draft202012Validator:
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema))


def _closed(schema: Any) -> Any:
    """The schema, where what it does not name is refused."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict) and schema.get("type", "object") in OBJECTS
    return {"additionalProperties": False, **closed} if is_object else closed


OBJECTS = ("object", ["object", "null"])
