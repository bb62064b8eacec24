"""How modelc starts Python for what runs in a process of its own.

    python python_worker.py MODULE|FILE.py ARGUMENT...

`python -m` and `python -c` look for every module in the working folder first, so that a `json.py` which lies there by
chance, or in a repository that somebody else has made, would be executed in place of Python's own. A worker does not
look there. It looks where Python does by itself: in the virtual environment, among what the user has installed, and in
the folders of PYTHONPATH, which a user names on purpose, even if the working folder is one of them. Where modelc is in
none of these, as in a checkout, the folder that it is from comes first, so that a worker always has the same modelc.
"""

from __future__ import annotations

import os
import sys

HERE = os.path.abspath(__file__)
ROOT = os.path.dirname(os.path.dirname(HERE))  # the folder that `import modelc` finds it in
SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()  # before, Python looks beside HERE first


_own_process = False


def own_process() -> None:
    """Says that this process is modelc's own, the command line's or a worker's: nobody else has modules in it."""
    global _own_process
    _own_process = True


def is_own_process() -> bool:
    return _own_process


def speak_utf8() -> None:
    """Starts this process again where the locale makes names of files anything but UTF-8 (LC_ALL=C with PYTHONUTF8=0,
    or a Latin-1 locale): in Python's UTF-8 mode every name can be read, written and stored."""
    if os.name == "posix" and sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"  # of the workers, too
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def worker_command(program: str | os.PathLike[str], *arguments: str) -> list[str]:
    """The command that runs a module by its name, or a file by its path that ends with .py, in a Python of its own,
    which executes nothing of the working folder."""
    return [sys.executable, *SAFE_PATH, HERE, os.fspath(program), *arguments]


def _run() -> None:
    """What such a command does."""
    if not SAFE_PATH:
        del sys.path[0]
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    import runpy

    from modelc.python_worker import own_process  # there, for this file itself is run as another module

    own_process()
    del sys.argv[0]
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
