"""Many models for many targets: cells that are made in parallel, kept by their content, and held to gates.

request.py   what is asked for: the table of options
matrix.py    modelc.yaml, read strictly: models, targets, precisions, gates
cells.py     one package of the matrix; which of them are asked for
look.py      all models inspected before anything is compiled
key.py       what a cell is made of, as one digest
kept.py      the folder of cells that were made before
worker.py    the process that makes one cell
crew.py      cells made here, several at a time
cluster.py   cells made by the workers of a Dask cluster
output.py    where packages and summaries go
gates.py     what is asked of a package
summary.py   build.json, JUnit XML, a page in Markdown
command.py   the command: a BuildRequest becomes packages and a BuildResult
"""
