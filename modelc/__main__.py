"""The program: `modelc`, or `python -m modelc`. It minds signals before it imports what takes time to import."""

from __future__ import annotations

from modelc.signals import tidy_ends


def main() -> None:
    """Runs the command line."""
    with tidy_ends(last=True):
        from modelc.cli import main as run

        run()


if __name__ == "__main__":
    main()
