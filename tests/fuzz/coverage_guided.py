"""One target under atheris, which looks for inputs that reach new code: `python -m tests.fuzz.coverage_guided NAME`.

What follows the name is for libFuzzer: `-runs=100000`, `-max_len=4096`, a folder of inputs. Ends with a failure, and
the input in a file, where something else than a typed refusal comes out.
"""

import sys
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["cyberkv.cybergraph"], enable_loader_override=False):
    from cyberkv.cybergraph.errors import CyberKVError
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz the target that the command line names; the last argument is a folder, filled with its seeds first."""
    program, name, *options, corpus = sys.argv
    target = TARGETS[name]
    for number, seed in enumerate(target.seeds):
        Path(corpus, f"seed-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        with suppress(CyberKVError):
            target.read(data)

    atheris.Setup([program, *options, corpus], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
