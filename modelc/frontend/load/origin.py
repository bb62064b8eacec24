"""What a model says of itself: who made it, and the texts that its makers put beside it."""

from __future__ import annotations

from dataclasses import replace

import onnx

from modelc.ir.origin import Origin

MOST_TEXT = 1 << 20  # characters that a package keeps of these texts


def origin_of(model: onnx.ModelProto) -> Origin:
    """Of a model, or of its outline."""
    return Origin(
        graph_name=model.graph.name,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        version=model.model_version,
        description=model.doc_string,
        graph_description=model.graph.doc_string,
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def kept_origin(model: onnx.ModelProto) -> tuple[Origin, tuple[str, ...]]:
    """As much of it as goes into a package, and a note for each text of metadata that is too long."""
    origin = origin_of(model)
    kept, notes, room = dict[str, str](), list[str](), MOST_TEXT
    for key, text in sorted(origin.metadata.items(), key=lambda entry: len(entry[1])):
        if len(key) + len(text) > room:
            notes.append(
                f"the model's metadata {key[:80]!r} has {len(text)} characters, and is not kept: a package has room "
                f"for {MOST_TEXT}"
            )
            continue
        room -= len(key) + len(text)
        kept[key] = text
    in_order = {key: kept[key] for key in origin.metadata if key in kept}
    return replace(
        origin,
        description=origin.description[:MOST_TEXT],
        graph_description=origin.graph_description[:MOST_TEXT],
        metadata=in_order,
    ), tuple(notes)
