"""Copies that follow each other at even steps are one: to ask for each by itself takes longer than the bytes do."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

Pair = tuple[Tensor, Tensor]


def on_device(tensor: Tensor) -> bool:
    """Say whether pieces of a tensor's memory may have gaps between them: on a device they are brought together there.

    Torch would have the host do that for its own memory, now, whatever is queued before.
    """
    return tensor.is_cuda


def joined(pairs: Iterable[Pair], gaps: Callable[[Tensor], bool] = on_device) -> Iterator[Pair]:
    """Join copies, (target, source), in their order, where targets and sources go on at even steps. Pure.

    Shapes: uint8 [n] each, in one piece; gives [n], or [copies, n] of what was joined.

    >>> import torch
    >>> rows, slot = torch.zeros(3, 8, dtype=torch.uint8), torch.arange(6, dtype=torch.uint8)
    >>> leaves = [(rows[i, 2:4], slot[2 * i : 2 * i + 2]) for i in range(3)]
    >>> [(target, source)] = joined(leaves, gaps=lambda tensor: True)
    >>> target.copy_(source).tolist(), rows[1].tolist()
    ([[0, 1], [2, 3], [4, 5]], [0, 0, 2, 3, 0, 0, 0, 0])
    >>> len(list(joined(leaves)))
    3
    """
    run: list[Pair] = []
    steps: tuple[int, int] | None = None
    for pair in pairs:
        step = _steps(run[-1], pair, gaps) if run else None
        if run and (step is None or steps not in (None, step)):
            yield _whole(run, steps)
            run, step = [], None
        run.append(pair)
        steps = step
    if run:
        yield _whole(run, steps)


def _steps(before: Pair, after: Pair, gaps: Callable[[Tensor], bool]) -> tuple[int, int] | None:
    """Say how far a pair lies behind another, target and source; None where they are not to be joined."""
    size = before[0].numel()
    if after[0].numel() != size or _memory(after[0]) == _memory(after[1]):
        return None
    steps = []
    for old, new in zip(before, after, strict=True):
        step = int(new.storage_offset()) - int(old.storage_offset())
        if _memory(old) != _memory(new) or step < size or (step > size and not gaps(new)):
            return None
        steps.append(step)
    return steps[0], steps[1]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _whole(run: list[Pair], steps: tuple[int, int] | None) -> Pair:
    (target, source), count = run[0], len(run)
    if steps is None:
        return target, source
    shape = (count, target.numel())
    return target.as_strided(shape, (steps[0], 1)), source.as_strided(shape, (steps[1], 1))
