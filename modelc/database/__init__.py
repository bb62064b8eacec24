"""What was measured, kept between runs: a file of SQLite that several tuners may write at once.

version.py    which records were measured of the code that is generated today
record.py     one measured Candidate, and under which conditions; as plain data, read strictly
whole.py      a network with what was found for its Tasks, timed beside the one without
file.py       opening a file that may be anything, making a new one, what SQLite's errors mean
store.py      the database: adding, listing, counting, removing
compare.py    records of one Task on one scale, and the best of them
recorded.py   what compiling takes from it, what it asked, and whether the answers are still the same
summary.py    what is in it, Task by Task
exchange.py   JSON lines out and in
family.py     the records that travel to other machines of the family
verbs.py      what users do with a database
"""

from modelc.database.record import Conditions, Record
from modelc.database.store import Database, database_for, default_place
from modelc.database.verbs import best, export, import_, merge, prune, show
from modelc.database.version import code_version

__all__ = [
    "Conditions",
    "Database",
    "Record",
    "best",
    "code_version",
    "database_for",
    "default_place",
    "export",
    "import_",
    "merge",
    "prune",
    "show",
]
