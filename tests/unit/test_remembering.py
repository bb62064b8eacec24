"""What Tasks and Candidates keep once they were asked, and what of them goes to other processes."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from dataclasses import is_dataclass, replace
from functools import cached_property

from three_ways import host_target, started, task_of

import modelc.ir
from modelc.ir.remembering import Remembering

PRODUCT = task_of("MatMul", {}, [(24, 64), (64, 96)], (1,)).canonical()


class Asking(str):
    """Text that asks everything of `about` while it is pickled, as another thread may."""

    about: tuple[object, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        for one in self.about:
            for name, kept in vars(type(one)).items():
                if isinstance(kept, cached_property):
                    getattr(one, name)
        return str, (str(self),)


def test_what_is_asked_while_a_task_is_pickled_disturbs_nothing() -> None:
    asking = Asking("task")
    task = replace(PRODUCT, name=asking, blocks=tuple(replace(b, name=Asking(b.name)) for b in PRODUCT.blocks))
    asking.about = (task, *task.blocks)
    found = pickle.loads(pickle.dumps(task))
    assert found == PRODUCT and found.hash == PRODUCT.hash and "hash" in vars(task), "nothing was asked"
    assert "hash" not in vars(pickle.loads(pickle.dumps(task))), "it goes without what was asked of it"
    candidate = started(PRODUCT, host_target())
    assert candidate.key and pickle.loads(pickle.dumps(candidate)) == candidate


def test_what_keeps_something_is_pickled_by_its_fields() -> None:
    seen = set()
    for module in pkgutil.iter_modules(modelc.ir.__path__, "modelc.ir."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and is_dataclass(one):
                keeps = any(isinstance(kept, cached_property) for kept in vars(one).values())
                assert not keeps or issubclass(one, Remembering), one
                seen |= {one.__name__} if keeps else set()
    assert seen >= {"Task", "Block", "Candidate"}
