"""The program: `modelc`, or `python -m modelc`. It minds signals before it imports what takes time to import.

Nothing of the working folder is executed but what a flag names (tune --objective). The installed `modelc` does not look
there for modules. `python -m` does, and puts the folder before all others: it is taken away again before anything is
imported but this package. (What Python itself imports before that, `python -P -m modelc` keeps it from.)
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line."""
    _refuse_namesake()
    from modelc.python_worker import own_process, speak_utf8
    from modelc.signals import tidy_ends

    speak_utf8()
    own_process()
    with tidy_ends(last=True):
        from modelc.cli import main as run

        run()


def _refuse_namesake() -> None:
    """Ends the program where a foreign distribution `modelc` has replaced modelc/__init__.py."""
    import modelc

    if not hasattr(modelc, "DISTRIBUTION"):
        print(
            "Error: another distribution of the name modelc has replaced files of modelc-compiler: run "
            "`pip uninstall modelc`, then install modelc-compiler again",
            file=sys.stderr,
        )
        sys.exit(2)


def _leave_working_folder() -> None:
    """Undoes what `python -m` has put before the other places of modules, unless modelc itself is from there."""
    try:
        folder = os.getcwd()
    except OSError:  # it is gone, and Python has not put it there
        return
    is_first = sys.path[:1] == [folder] and not getattr(sys.flags, "safe_path", False)
    if is_first and folder != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_folder()
    main()
