"""Machine code of Tasks, which is kept by its content: a kernel that was compiled before is taken from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

from modelc.cache.code import code_digest, content_key
from modelc.cache.store import Store
from modelc.codegen.kernel import Kernel
from modelc.forks import shared
from modelc.ir.candidate import Candidate
from modelc.space.choose import Chosen
from modelc.target import Target


@dataclass(frozen=True)
class MachineCode:
    """Kernels for `target`, by the Tasks' hashes. Names of their functions begin with `prefix`. So many `processes`
    compile them, and `say` is told how many of how many are done."""

    target: Target
    prefix: str
    processes: int
    store: Store
    say: Callable[[str], None]

    @cached_property
    def conditions(self) -> str:
        """All that a kernel depends on but for its Task, its Candidate and its name."""
        return f"{code_digest()} {self.target!r}"

    def check(self) -> None:
        """Raises TargetError where LLVM makes no code for the target; a target is asked for once."""
        key = content_key(self.conditions)
        if not self.store.get("machine", [key]):
            from modelc.codegen.kernels import llvm_machine  # and TVM, which nothing before needs

            llvm_machine(self.target)
            self.store.put("machine", {key: b""})

    def symbol(self, name: str) -> str:
        """The name of the kernel of a Task."""
        return f"{self.prefix}_k_{name}"

    def kept(self, candidates: Mapping[str, Candidate]) -> dict[str, Kernel]:
        """The kernels that were compiled before of Tasks by these Candidates, whose Nests were verified then."""
        names = {self._key(name, candidate): name for name, candidate in candidates.items()}
        kernels = self.store.get("kernel", names)
        return {names[key]: Kernel.from_bytes(data, self.target) for key, data in kernels.items()}

    def compiled(
        self, chosen: Mapping[str, Chosen], blaming: Callable[[str], AbstractContextManager[None]]
    ) -> dict[str, Kernel]:
        """New kernels of Tasks. What fails is told by `blaming` of the Task's hash. C source of opaque Blocks is not
        kept."""
        if not chosen:
            return {}
        from modelc.codegen.kernels import compile_nest  # and TVM, before this process forks

        def compiled(name: str) -> Kernel:
            with blaming(name):
                return compile_nest(chosen[name].nest, self.symbol(name), self.target)

        names, kernels = [*chosen], dict[str, Kernel]()
        for number, kernel in shared(compiled, names, self.processes, threads=True):
            kernels[names[number]] = kernel
            self.say(f"{len(kernels)} of {len(names)} kernels, {self.processes} at a time")
        code = {name: kernel for name, kernel in kernels.items() if kernel.object is not None}
        self.store.put("kernel", {self._key(n, chosen[n].candidate): kernel.to_bytes() for n, kernel in code.items()})
        return kernels

    def _key(self, name: str, candidate: Candidate) -> bytes:
        return content_key(self.conditions, self.symbol(name), candidate.key)
