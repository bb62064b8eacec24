"""Records of one Task on one scale. A time says little by itself: a machine is not equally fast every day. So times are
compared that were measured by turns with the same Candidate, and sessions by what both of them measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from modelc.database.record import Record
from modelc.measure.measurement import Measurement


def comparable(records: Sequence[Record], anchor: str) -> dict[str, tuple[Record, Measurement]]:
    """Good records of one Task under equal conditions, by the Candidate's key, each with its measurement as if by turns
    with the Candidate whose key is `anchor`: those that were measured by turns with the same Candidate as that was. Of
    several records of a Candidate the last one counts."""
    groups = [group for group in _groups(records) if anchor in group]
    if not groups:
        return {}
    unit = median(group[anchor].measurement.seconds for group in groups)
    scaled: dict[str, tuple[Record, Measurement]] = {}
    for group in groups:
        base = group[anchor].measurement.relative
        for key, record in group.items():
            seconds = record.measurement.relative / base * unit
            previous = scaled.get(key)
            if previous is None or previous[0].measured_at <= record.measured_at:
                measurement = replace(record.measurement, seconds=seconds, reference_seconds=unit, reference=anchor)
                scaled[key] = record, measurement
    return scaled


def apart(records: Sequence[Record], anchor: str) -> list[Record]:
    """The fastest of each group of records that `anchor` was not measured with, the last group first."""
    return [
        min(group.values(), key=lambda record: record.measurement.relative)
        for group in reversed(_groups(records))
        if anchor not in group
    ]


def untuned_key(records: Sequence[Record]) -> str:
    """The key of the Candidate that the Task of records has without tuning, as the last of them says; none: nothing."""
    return next((record.key for record in reversed(records) if record.untuned), "")


def fastest(records: Sequence[Record]) -> Record | None:
    """The record of the fastest Candidate, if it is known to be faster than what the Task has without tuning; of
    records of one Task under equal conditions."""
    untuned = untuned_key(records)
    scaled = comparable(records, untuned)
    if not scaled:
        return None
    record, measurement = min(scaled.values(), key=lambda pair: pair[1].relative)
    return record if measurement.faster(scaled[untuned][1]) else None


def _groups(records: Sequence[Record]) -> list[dict[str, Record]]:
    """Good records by what they were measured by turns with, and then by their Candidate: the last of each."""
    groups: dict[str, dict[str, Record]] = {}
    for record in records:
        if record.measurement.ok:
            groups.setdefault(record.measurement.reference, {})[record.key] = record
    return list(groups.values())
