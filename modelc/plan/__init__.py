"""The plan of a package: every buffer's place, constants packed once, kernels in order (program.py)."""
