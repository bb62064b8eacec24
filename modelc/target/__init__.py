"""Machines as data: the YAML schema, the shipped targets, probing this machine."""

from modelc.target.cost import CostParameters
from modelc.target.intrinsic import Intrinsic
from modelc.target.intrinsics import parse_intrinsics, read_intrinsics, shipped_intrinsics
from modelc.target.llvm import llvm_target
from modelc.target.native import probe
from modelc.target.peak import Peak, Unit, best_unit
from modelc.target.schema import Cache, Memory, Target, VectorUnit, parse_target, read_target
from modelc.target.shipped import list_targets, load_target

__all__ = [
    "Cache",
    "CostParameters",
    "Intrinsic",
    "Memory",
    "Peak",
    "Target",
    "Unit",
    "VectorUnit",
    "best_unit",
    "list_targets",
    "llvm_target",
    "load_target",
    "parse_intrinsics",
    "parse_target",
    "probe",
    "read_intrinsics",
    "read_target",
    "shipped_intrinsics",
]
