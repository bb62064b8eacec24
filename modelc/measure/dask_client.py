"""A client of a Dask cluster, as long as its context: that nobody is there is a sentence, and leaving never hangs."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from modelc.errors import Unmeasurable

CONNECTING = 10.0  # seconds
ENDING = 10.0  # seconds that saying goodbye may take


OfCluster = TypeVar("OfCluster", bound="DaskClient")


class DaskClient(ABC):
    """`name` is what the scheduler calls it. Entering raises Unmeasurable where the cluster at `address`
    (tcp://HOST:PORT) cannot be used."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name
        self._client: Any = None

    @abstractmethod
    def _check_workers(self) -> None:
        """Raises Unmeasurable where there is none that can be used."""

    def _leave(self) -> None:
        """Says goodbye; nothing is to be learnt from how that ends."""
        with suppress(Exception):  # it may be gone
            self._client.close(timeout=ENDING)

    def __enter__(self: OfCluster) -> OfCluster:
        from distributed import Client

        make: Any = Client
        self._levels = _quiet()
        try:
            self._client = make(self._address, timeout=CONNECTING, set_as_default=False, name=self._name)
        except (OSError, ValueError) as error:
            _loud(self._levels)
            raise Unmeasurable(
                f"there is no Dask scheduler at {self._address}: {error}; start one by: dask scheduler"
            ) from None
        try:
            self._check_workers()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        goodbye = threading.Thread(target=self._leave, daemon=True)
        goodbye.start()
        goodbye.join(ENDING)
        _loud(self._levels)


def _quiet() -> dict[str, int]:
    """What Dask logs of connections is said in sentences here. The levels that its loggers had."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "distributed"]
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return levels


def _loud(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
