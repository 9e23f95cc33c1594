"""Blocks on their way to a device, as a sequence waits for them: layer by layer, each right before it is computed."""

from .loading import Loading


class BlocksComing:
    """The blocks of a `Loading` in the page table of a sequence: a `Coming`.

    Only the stream of the kernels waits, and the host until what a layer reads was verified. So the first layers are
    computed while leaves of the others are read. Whoever set it takes it away after `Loading.finish`, and where `take`
    raised goes back to the blocks that this counts.
    """

    def __init__(self, loading: Loading, first: int, last: int) -> None:
        """They stand at positions `first` to `last` (excluded)."""
        self._loading, self._span = loading, (first, last)
        self._taken: set[int] = set()

    def take(self, layer: int) -> tuple[int, int] | None:
        """See `Coming`."""
        if layer in self._taken:
            return None
        self._loading.take(layer)
        self._taken.add(layer)
        return self._span
