"""What a compilation has asked a database: the answers are others when there are new records of just that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import database_files as files

from modelc.database import Database
from modelc.database.recorded import Consulted


def test_answers_change_with_the_records_that_were_asked_for(tmp_path: Path) -> None:
    asked = Consulted({files.TASK.hash: files.CONDITIONS}, {files.WHOLE.network})
    elsewhere = Consulted({files.TASK.hash: replace(files.CONDITIONS, threads=7)}, {"b" * 64})
    again = Consulted.from_json(asked.to_json())
    assert again == asked
    with Database(tmp_path / "records.sqlite") as database:
        before, other = asked.answers(database), elsewhere.answers(database)
        database.add(files.TASK, *files.made())
        tuned = asked.answers(database)
        assert tuned != before and elsewhere.answers(database) == other
        database.settle(files.WHOLE)
        assert asked.answers(database) not in (before, tuned) and elsewhere.answers(database) == other
        assert again.answers(database) == asked.answers(database)
