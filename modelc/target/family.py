"""Coefficients of the price by families of CPUs: `targets/cost/FAMILY.yaml`.

    cpus: [x86-64-v3, znver3]       LLVM's names of the CPUs that they are for
    machine: ...                    what was measured, when, by which version, and the regret that the fit reached
    cost: {load_cycles: 0.2, ...}   any of the CostParameters

A CPU of no family has the parameters that CostParameters are by default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from modelc.target.cost import CostParameters, cost_parameters
from modelc.target.section import Section, parse_yaml, read_text, targets_folder

DEFAULT = "default"


@dataclass(frozen=True)
class Family:
    """CPUs that are priced alike; `machine` says on what the coefficients were fitted."""

    name: str
    cpus: tuple[str, ...]
    machine: str
    cost: CostParameters = field(default_factory=CostParameters)


@cache
def families() -> tuple[Family, ...]:
    """Every shipped family, in the order of their names."""
    return tuple(
        _family(path.stem, Section(str(path), "", parse_yaml(read_text(path, "a family of CPUs"), str(path))))
        for path in sorted((targets_folder() / "cost").glob("*.yaml"))
    )


def family_of(cpu: str) -> Family:
    """That of a CPU, by LLVM's name."""
    unmeasured = Family(DEFAULT, (), "Sapphire Rapids, Zen 4 and Zen 5, each in part")
    return next((family for family in families() if cpu in family.cpus), unmeasured)


def priced_as_another(cpu: str) -> tuple[str, ...]:
    """What to say where a CPU was never measured: none where it was."""
    family = family_of(cpu)
    if cpu in family.cpus:
        return ()
    return (f"no schedules were measured on {cpu}: they are priced by coefficients of {family.machine}",)


def _family(name: str, top: Section) -> Family:
    top.only_keys(("cpus", "machine", "cost"), required=("cpus", "machine", "cost"))
    cpus = top.sequence("cpus", "a list of LLVM's names of CPUs")
    if not all(isinstance(cpu, str) for cpu in cpus):
        raise top.wrong("cpus", cpus, "names")
    return Family(name, tuple(cpus), top.tree["machine"], cost_parameters(top.section("cost")))
