"""Candidate -> Nest.

storage.py   where buffers lie, and accesses as indices of their storage
build.py     loops from tiles and order, Blocks at their places, storage from what is read there
prefetch.py  software prefetch: what comes next is fetched while a part is worked on
"""
