"""modelc cache"""

from __future__ import annotations

import click

from modelc.cli.output import json_option, print_json, say, show, size
from modelc.errors import CacheError


@click.group()
def cache() -> None:
    """What compiling has worked out before: prices and schedules of kernels, machine code; packages of sessions."""


@cache.command("show")
@json_option
def show_(as_json: bool) -> None:
    """Says how much is kept of what, and where."""
    from modelc.cache.packages import MOST_BYTES, kept_packages
    from modelc.cache.store import user_store

    store = user_store()
    kinds, (packages, package_bytes) = store.kinds(), kept_packages()
    if store.trouble:
        raise CacheError(store.trouble)
    if as_json:
        kept = {"count": packages, "bytes": package_bytes, "most_bytes": MOST_BYTES}
        said = {"path": str(store.path), "most_bytes": store.most_bytes, "kinds": list(map(vars, kinds))}
        print_json("cache-show", {**said, "packages": kept})
        return
    say(f"{store.path}, at most {size(store.most_bytes)}")
    show(("kind", "rows", "bytes"), [(kind.name, str(kind.rows), size(kind.bytes)) for kind in kinds])
    say(f"{packages} packages of sessions, {size(package_bytes)}, at most {size(MOST_BYTES)}")


@cache.command("clear")
@json_option
def clear(as_json: bool) -> None:
    """Removes all of it: what is compiled next takes its full time."""
    from modelc.cache.packages import clear_packages
    from modelc.cache.store import user_store

    store = user_store()
    try:
        removed = store.clear() + clear_packages()
    except OSError as error:
        raise CacheError(f"the cache {store.path} cannot be removed: {error.strerror}") from None
    if as_json:
        print_json("cache-clear", {"path": str(store.path), "bytes": removed})
    else:
        say(
            f"{size(removed)} were removed, {store.path} and packages of sessions"
            if removed
            else f"there is nothing in {store.path}"
        )
