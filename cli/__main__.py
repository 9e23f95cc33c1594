"""`python -m cyberkv.cli` is the `cyberkv` command, and this is where it begins."""

from typing import NoReturn

from .interrupt import leave_at_once


def main() -> NoReturn:
    """Run the command line of this process. What it is made of is imported when a Ctrl-C does no harm any more."""
    leave_at_once()
    from .main import main as begin

    begin()


if __name__ == "__main__":
    main()
