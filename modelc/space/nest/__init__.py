"""Candidate -> Nest.

build.py     loops from tiles and order, Blocks at their places, storage from what is read there
prefetch.py  software prefetch: what comes next is fetched while a part is worked on
"""
