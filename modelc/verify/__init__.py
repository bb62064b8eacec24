"""Packages against what they mean: kernels, outputs, speed."""

import sys
from types import ModuleType
from typing import Any

from modelc.verify.bench import bench
from modelc.verify.check import check_inputs
from modelc.verify.compare import Distance, distance
from modelc.verify.profile import profile
from modelc.verify.report import LayerReport, OutputReport, Report
from modelc.verify.verdict import verify_outputs

__all__ = [
    "Distance",
    "LayerReport",
    "OutputReport",
    "Report",
    "bench",
    "check_inputs",
    "distance",
    "profile",
    "verify_outputs",
]


class _Room(ModuleType):
    """`modelc.verify(...)` is a call of the library, though `modelc.verify` is this room as well."""

    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        from modelc import verify_package

        report: Report = verify_package(*args, **kwargs)
        return report


sys.modules[__name__].__class__ = _Room
