"""modelc cache"""

from __future__ import annotations

import click

from modelc.cli.output import json_option, print_json, say, show, size
from modelc.errors import CacheError


@click.group()
def cache() -> None:
    """What compiling has worked out before: prices and schedules of kernels, machine code."""


@cache.command("show")
@json_option
def show_(as_json: bool) -> None:
    """Says how much is kept of what, and where."""
    from modelc.cache.store import user_store

    store = user_store()
    kinds = store.kinds()
    if store.trouble:
        raise CacheError(store.trouble)
    if as_json:
        print_json(
            "cache-show", {"path": str(store.path), "most_bytes": store.most_bytes, "kinds": list(map(vars, kinds))}
        )
        return
    say(f"{store.path}, at most {size(store.most_bytes)}")
    show(("kind", "rows", "bytes"), [(kind.name, str(kind.rows), size(kind.bytes)) for kind in kinds])


@cache.command("clear")
@json_option
def clear(as_json: bool) -> None:
    """Removes all of it: what is compiled next takes its full time."""
    from modelc.cache.store import user_store

    store = user_store()
    try:
        removed = store.clear()
    except OSError as error:
        raise CacheError(f"the cache {store.path} cannot be removed: {error.strerror}") from None
    if as_json:
        print_json("cache-clear", {"path": str(store.path), "bytes": removed})
    else:
        say(f"{size(removed)} were removed with {store.path}" if removed else f"there is nothing in {store.path}")
