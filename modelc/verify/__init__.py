"""Packages against what they mean: kernels, outputs, speed."""

from modelc.callable_room import make_callable
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


make_callable(__name__, "modelc.compile.verification", "verify")
