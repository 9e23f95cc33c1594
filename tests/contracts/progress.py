from cyberkv.cybergraph.transfer.progress import Phase


class Counter:
    """Progress that adds up, and is interrupted by the user at a number of blocks."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.phases: list[tuple[Phase, int, int]] = []
        self.blocks = self.leaf_bytes = 0
        self.stop_at = stop_at

    def phase(self, name: Phase, *, blocks_total: int, bytes_total: int) -> None:
        self.phases.append((name, blocks_total, bytes_total))

    def advance(self, blocks: int, size_bytes: int) -> None:
        self.blocks += blocks
        self.leaf_bytes += size_bytes
        if self.stop_at is not None and self.blocks >= self.stop_at:
            raise KeyboardInterrupt
