"""One file per claim. Each prints a ratio against a peer measured in the same run, and fails below its bar.

`main(argv)` takes `--json` (one object on stdout) and `--quick` (small sizes, bars not enforced: does it still run?).
"""
