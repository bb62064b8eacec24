"""What a model says of itself, beside what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Origin:
    """The fields of an ONNX model that name it and its maker. `metadata` are its metadata_props: the alphabet of a text
    recogniser, the names of a detector's classes."""

    graph_name: str = ""
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    version: int = 0
    description: str = ""
    graph_description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
