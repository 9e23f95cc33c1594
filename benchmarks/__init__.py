"""One file per claim. Each prints a ratio against a peer measured in the same run, and fails below its bar.

`main(argv)` takes `--json` (one object on stdout), `--quick` (small sizes, bars not enforced: does it still run?),
`--full` (the largest sizes) and `--folder` (where to write).
"""
