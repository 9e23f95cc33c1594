"""How publish and fetch tell where they are. Nothing is printed here: a front end draws, a test counts.

>>> class Count:
...     blocks = 0
...     def phase(self, name, *, blocks_total, bytes_total): print(name, blocks_total, bytes_total)
...     def advance(self, blocks, size_bytes): self.blocks += blocks
>>> watcher: Progress = Count()
>>> watcher.phase("write", blocks_total=2, bytes_total=512)
write 2 512
"""

from typing import Literal, Protocol

Phase = Literal["write", "fetch", "check", "pin", "seal"]
"""`write`: blocks go out. `fetch`: blocks come in. `check`: what is here is read and compared. `pin`: a node goes
through what it holds. `seal`: blocks are read, sealed and stored."""


class Progress(Protocol):
    """Receives one `phase` at the start of each phase, then `advance` for what was done since the last call."""

    def phase(self, name: Phase, *, blocks_total: int, bytes_total: int) -> None:
        """Begin a phase.

        `blocks_total` counts nodes and leaves; `bytes_total` is leaf payload alone, since the size of a node is
        unknown before it is here; for `pin` it is all bytes.
        """

    def advance(self, blocks: int, size_bytes: int) -> None:
        """Count blocks and leaf bytes as done."""


class Silent:
    """Progress that nobody watches."""

    def phase(self, name: Phase, *, blocks_total: int, bytes_total: int) -> None:
        """Do nothing."""

    def advance(self, blocks: int, size_bytes: int) -> None:
        """Do nothing."""


SILENT: Progress = Silent()
