"""What pages have read before, within a bound. Content never changes under its CID, so nothing here goes stale."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The values used last, up to a total weight. From any thread; two that miss at once both do the work.

    >>> squares = Cache[int, int](most=2)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 3)], len(squares)
    ([1, 4, 9], 2)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: K, make: Callable[[], V], weigh: Callable[[V], int] = lambda _: 1) -> V:
        """Give the value of `key`, made now if it is not held. What `make` raises is not kept."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        value = make()
        weight = weigh(value)
        with self._lock:
            if key not in self._held and weight <= self._most:
                self._held[key] = value, weight
                self._weight += weight
                while self._weight > self._most:
                    self._weight -= self._held.popitem(last=False)[1][1]
        return value
