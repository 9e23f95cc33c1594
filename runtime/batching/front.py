"""The scheduler for a program with several threads, such as a server: hand in, listen or iterate, cancel.

    with Front(engine) as front:
        ticket = front.submit(Request(tokens, max_tokens=64, stop=stop, keep=lambda live: checkpoint(live, ...)))
        for token in ticket:
            ...
        root = ticket.outcome().kept

One thread, owned by the front, makes every step and calls every hook of a request (`open`, `ends`, `keep`, the
listener), so the engine is used from that thread alone while a front is open.
"""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import Self

from ...cybergraph.errors import Refused
from ..engine import Engine
from .admission import Limits
from .ahead import Ahead
from .request import Listener, Outcome, Request
from .scheduler import Scheduler


class Ticket:
    """One request that was handed in. Usable from any thread; iterate from one."""

    def __init__(self, front: "Front", listener: Listener | None) -> None:
        self._front = front
        self._listener = listener
        self._events: SimpleQueue[int | Outcome] = SimpleQueue()
        self._ended = Event()
        self._outcome: Outcome | None = None
        self.number = -1
        """Requests are numbered in the order in which they were handed in."""

    def __iter__(self) -> Iterator[int]:
        """Give each token as it is chosen; wait for the next. Raises what made the request fail."""
        while not isinstance(event := self._events.get(), Outcome):
            yield event
        self._events.put(event)
        if event.error:
            raise event.error

    def cancel(self) -> None:
        """End the request at the next step, whatever state it is in. Without effect once it has ended."""
        self._front.cancel(self.number)

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """Wait for the end. A failed request has its `error` there. Raises `TimeoutError`."""
        if not self._ended.wait(timeout_s) or self._outcome is None:
            raise TimeoutError("the request has not ended yet")
        return self._outcome

    def tell(self, event: int | Outcome) -> None:
        """Pass on what happened; called by the stepping thread alone."""
        if isinstance(event, Outcome):
            self._outcome = event
            self._ended.set()  # before anybody hears of it, and asks
        if self._listener:
            self._listener(event)
        else:
            self._events.put(event)


class Front:
    """Many conversations over one engine, for many threads."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self._scheduler = Scheduler(engine, limits)
        self._changed = Condition()
        self._closing = False
        self._thread = Thread(target=self._work, name="batching", daemon=True)
        self._thread.start()

    def submit(self, request: Request, listener: Listener | None = None) -> Ticket:
        """Hand in a request. With a listener, that is told of tokens and end; without, the ticket is iterated.

        Raises `OutOfRange` or `TierFull` at once for what can never run, `TierFull` where too many wait already,
        `Refused` after `close`.
        """
        ticket = Ticket(self, listener)
        with self._changed:
            if self._closing:
                raise Refused("no more requests are taken", hint="the program is ending")
            ticket.number = self._scheduler.submit(request, ticket.tell)
            self._changed.notify()
        return ticket

    def cancel(self, number: int) -> None:
        """End a request at the next step. Without effect once it has ended."""
        with self._changed:
            self._scheduler.cancel(number)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._scheduler.busy and not self._closing:
                    self._changed.wait()
                if self._closing:
                    self._scheduler.cancel_all()
            if not self._scheduler.busy:
                return
            try:
                self._scheduler.step()
            except Exception as error:
                self._scheduler.fail_all(error)  # else they, and all who come later, would wait for ever

    def close(self) -> None:
        """Cancel what still runs, wait for the stepping thread, give every pool row back. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self.ahead:
            self.ahead.close()

    @property
    def ahead(self) -> Ahead | None:
        """What brings the blocks of waiting requests nearer, where the engine has host memory for it."""
        return self._scheduler.ahead

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
