"""`python -m cyberkv.cli` is the `cyberkv` command."""

from .main import main

main()
