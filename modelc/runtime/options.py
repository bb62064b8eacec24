"""Options of sessions and runs, as programs for ONNX Runtime set them. Those that ask how fast, how much memory or how
many messages are taken and change nothing; those that a package cannot obey are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar

from modelc.runtime.providers import check_providers
from modelc.runtime.refusals import Fail, Unusable


class GraphOptimizationLevel(IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Attributes with a default each, which says their type, and configuration entries."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        self.__dict__.update(self.DEFAULTS)
        self.__dict__["_entries"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.DEFAULTS:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}; it has {', '.join(self.DEFAULTS)}")
        kind = type(self.DEFAULTS[name])
        if not isinstance(value, kind) and not (kind is int and hasattr(value, "__index__")):
            raise TypeError(f"{type(self).__name__}.{name} is {value!r}; expected {kind.__name__}")
        self.__dict__[name] = value

    def _entry(self, key: str) -> str:
        entries: dict[str, str] = self.__dict__["_entries"]
        if key not in entries:
            raise Unusable(f"{type(self).__name__} has no configuration entry {key!r}")
        return entries[key]


class SessionOptions(_Options):
    """`intra_op_num_threads` says on how many threads a package runs, `enable_profiling` that its kernels are timed."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["free_dimensions"] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.__dict__["_entries"][key] = value

    def get_session_config_entry(self, key: str) -> str:
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Of a model that is compiled: a dimension of this name has this size."""
        self.__dict__["free_dimensions"][name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        raise Fail("dimensions are fixed by their names (add_free_dimension_override_by_name), not by denotations")

    def register_custom_ops_library(self, path: str) -> None:
        raise Fail(
            f"the operators in {path} are ONNX Runtime's to call: modelc compiles ONNX's own operators, functions of "
            "the model and those that `modelc inspect` does not list as unsupported"
        )

    def add_initializer(self, name: str, value: Any) -> None:
        raise Fail(f"the initialiser {name!r} cannot be replaced: a package has the model's own; store it in the model")

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self.add_initializer(", ".join(names), values)

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        check_providers([name])


class RunOptions(_Options):
    """`terminate` is looked at before a run."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.__dict__["_entries"][key] = value

    def get_run_config_entry(self, key: str) -> str:
        return self._entry(key)

    def add_active_adapter(self, adapter: Any) -> None:
        raise Fail("adapters change a model's weights, which a package has packed: compile the model with them")


def check_options(options: Any) -> None:
    """Raises Fail for what a package cannot obey. `options` may be ONNX Runtime's own."""
    if place := getattr(options, "optimized_model_filepath", ""):
        raise Fail(
            f"no optimised model can be written to {place}: there is none, modelc makes machine code of the model"
        )
    entries = getattr(options, "_entries", {})
    if entries.get("session.load_model_format", "ONNX").upper() != "ONNX":
        raise Fail("a model in ORT's own format cannot be compiled: give the .onnx file that it was made of")
