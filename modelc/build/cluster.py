"""Cells made by the workers of a Dask cluster. Whatever a cell needs is sent, and its package comes back; the cell of a
worker that is gone is made again by another."""

from __future__ import annotations

import io
import os
import queue
import secrets
import sqlite3
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from modelc.build.crew import Answer, Crew, Say
from modelc.build.key import tools
from modelc.build.matrix import FILES
from modelc.cache.code import own_digest
from modelc.database import default_place
from modelc.errors import Unmeasurable
from modelc.frontend.load.beside import files_beside
from modelc.measure import dask_client
from modelc.measure.dask_client import DaskClient
from modelc.measure.where import Where
from modelc.scratch import TemporaryFolder
from modelc.target import load_target

WAITED = 600.0  # seconds for an answer, while there is no worker
LOOKING = 5.0  # seconds without an answer, after which is looked who is there
SUFFIXES = (".yaml", ".yml")  # of a target or a configuration in a file
PACKAGE, RECORDS = "made.modelc", "given/records.sqlite"

Files = Mapping[str, bytes]


def version_there() -> str:
    """Of all that has to be alike: the code, and its tools."""
    return " ".join([own_digest()[:16], *(f"{tool} {version}" for tool, version in tools().items())])


def made_there(name: str, order: Mapping[str, Any], files: Files) -> tuple[Answer, bytes]:
    """What a worker does: the cell, in a process of its own, and the package as a tar file."""
    with TemporaryFolder("sent") as folder, Crew(1, lambda cell, text: None) as crew:
        for path, content in files.items():
            place = Path(folder) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        package = Path(folder) / PACKAGE
        answer = crew.made(name, {**_moved(order, Path(folder)), "output": str(package)})
        return answer, _packed(package) if answer.made is not None else b""


class BuildCluster(DaskClient):
    """The cluster at `dask://HOST:PORT`, until the context ends. Raises Unmeasurable where it cannot be used."""

    def __init__(self, text: str, say: Say) -> None:
        super().__init__(Where.parse(text).cluster, "modelc build")
        self._say, self._session = say, secrets.token_hex(8)

    def results(self, orders: Mapping[str, Mapping[str, Any]]) -> Iterator[Answer]:
        """An answer for each order, by its cell's name, as they come; packages are where the orders say."""
        done: queue.Queue[str] = queue.Queue()
        futures = {}
        for name, order in orders.items():
            sent, files = shipped(order)
            key = f"modelc-cell-{self._session}-{name}"
            futures[name] = self._client.submit(made_there, name, sent, files, key=key, pure=False)
            futures[name].add_done_callback(lambda _, name=name: done.put(name))
        alone = 0.0
        while futures:
            try:
                name = done.get(timeout=LOOKING)
            except queue.Empty:
                alone = 0.0 if self._workers() else alone + LOOKING
                if alone >= WAITED:
                    raise Unmeasurable(f"there is no worker at {self._address} since {WAITED:g} s") from None
                continue
            yield self._answer(name, orders[name], futures.pop(name))

    def _answer(self, name: str, order: Mapping[str, Any], future: Any) -> Answer:
        from distributed import KilledWorker

        try:
            answer, packed = future.result(timeout=dask_client.CONNECTING)
        except KilledWorker as error:
            return Answer(name, None, f"{error.allowed_failures + 1} workers have ended while they made it")
        except Exception as error:
            return Answer(name, None, f"the cluster lost it ({type(error).__name__}: {error})"[:400])
        finally:
            future.release()
        if packed:
            _unpacked(packed, Path(order["output"]))
        result: Answer = answer
        return result

    def _workers(self) -> Mapping[str, Any]:
        with suppress(OSError, RuntimeError):  # it tries to be connected
            workers: Mapping[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
            return workers
        return {}

    def _check_workers(self) -> None:
        if not self._workers():
            raise Unmeasurable(f"there is no worker at {self._address}; start one by: dask worker {self._address}")
        here = version_there()
        for address, there in self._client.run(version_there, on_error="return").items():
            if there != here:
                raise Unmeasurable(f"the worker {address} has modelc {there}, and this is {here}: install the same")


# --- what goes there and back ---------------------------------------------------------------------------------------


def shipped(order: Mapping[str, Any]) -> tuple[dict[str, Any], Files]:
    """An order with relative paths, and the files at them: the model and its external data, the target, its intrinsics
    and records, data, choices, constants."""
    model = Path(order["model"])
    paths = {f"model/{path.relative_to(model.parent)}": path for path in (model, *files_beside(model))}
    options = dict(order["options"])
    sent = {**order, "model": f"model/{model.name}", "options": options}
    if order["target"].endswith(SUFFIXES):
        described = Path(order["target"])
        target = load_target(described)
        names = [described.name, *(unit.file for unit in target.intrinsics or () if unit.file is not None)]
        names += [os.path.relpath(target.records.source, described.parent)] if target.records is not None else []
        paths |= {f"given/target/{name}": described.parent / name for name in names}
        sent["target"] = f"given/target/{described.name}"
    copied = _records(options["database"])
    options["database"] = RECORDS if copied else False
    for name in {*FILES, "config"} & options.keys():
        place, colon, function = options[name].rpartition(":") if name == "metric" else (options[name], "", "")
        there = f"given/{name}{Path(place).suffix}"
        if name == "calibrate" and Path(place).is_dir():
            there = "given/samples"
            paths |= {f"{there}/{file.name}": file for file in Path(place).iterdir() if file.is_file()}
        elif name != "config" or place.endswith(SUFFIXES):
            paths[there] = Path(place)
        else:
            continue
        options[name] = f"{there}{colon}{function}"
    options["constants"] = constants = dict(options.get("constants", {}))
    for number, (name, value) in enumerate(constants.items()):
        if isinstance(value, str):
            constants[name] = f"given/{number}.npy"
            paths[constants[name]] = Path(value)
    files = {name: path.read_bytes() for name, path in paths.items()}
    return sent, files | ({RECORDS: copied} if copied else {})


def _records(given: str | bool) -> bytes:
    """A copy of the database that an order reads; nothing where there is none."""
    place = default_place() if given is True else Path(given) if given else None
    if place is None or not place.is_file():
        return b""
    with TemporaryFolder("records") as folder:
        copy = Path(folder) / "records.sqlite"
        with closing(sqlite3.connect(f"{place.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        return copy.read_bytes()


def _moved(order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """An order whose relative paths begin at `folder`."""

    def at(value: Any) -> Any:
        return str(folder / value) if isinstance(value, str) and value.startswith(("given/", "model/")) else value

    options = order["options"]
    placed = {name: at(options[name]) for name in {*FILES, "config", "database"} & options.keys()}
    constants = {name: at(value) for name, value in options["constants"].items()}
    moved = {"model": at(order["model"]), "target": at(order["target"])}
    return {**order, **moved, "options": {**options, **placed, "constants": constants}}


def _packed(package: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in sorted(package.iterdir()):
            tar.add(file, file.name, recursive=False)
    return buffer.getvalue()


def _unpacked(packed: bytes, place: Path) -> None:
    """Writes a package that has come back; only plain files with plain names are taken."""
    from modelc.package.write import take_place
    from modelc.scratch import beside

    with tarfile.open(fileobj=io.BytesIO(packed)) as tar, beside(place, folder=True) as made:
        for member in tar.getmembers():
            content = tar.extractfile(member)
            if content is None or "/" in member.name or member.name.startswith("."):
                continue
            (made / member.name).write_bytes(content.read())
        take_place(made, place)
