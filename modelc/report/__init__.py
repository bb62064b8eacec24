"""What packages, builds and databases are, as pages to look at: one file each, which needs nothing beside it.

facts.py      what is said of a package: its kernels, times, arena, verification, tuning
tuning.py     NAME.tuning.json beside a package: how its tuning went
charts.py     plots, as Vega-Lite specifications
page.py       a page from sections
page.html.j2  its template
command.py    the command: a package, a build or a database becomes a page
"""
