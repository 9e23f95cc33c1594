"""What a command works with: the home directory and the clock, which nothing below `cli/` reads."""

import os
import sys
import time
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..cybergraph.errors import BadReference, Corrupt, CyberKVError, NotFound
from ..cybergraph.private import make_private_folder
from .kubo import open_source

if TYPE_CHECKING:
    from ..cybergraph.cid import Cid
    from ..cybergraph.index import Index
    from ..cybergraph.keeping.room import Room
    from ..cybergraph.peers.probe import Probe
    from ..cybergraph.store.disk import DiskStore
    from ..runtime.models.registry import Registry


def default_home() -> Path:
    """Give the platform's data folder for this program."""
    from platformdirs import user_data_path

    return user_data_path("cyberkv", appauthor=False)


def default_cache() -> Path:
    """Give the platform's folder for what can be made again, such as the converted built-in model."""
    from platformdirs import user_cache_path

    return user_cache_path("cyberkv", appauthor=False)


class Session:
    """One run of the program: its options, and the store, index and models of its home, opened on use.

    Commands that only read need a home that exists and change nothing; in the others, `create_home` or
    `open_to_write` comes first. Raises `BadReference` for a home that cannot be one.
    """

    def __init__(self, home: Path, *, as_json: bool, quiet: bool, verbose: int, progress: bool) -> None:
        _check_home(home)
        self.home = home
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self.shows_progress = progress and not quiet and not as_json and sys.stderr.isatty()
        self.tells_progress = progress and not quiet and as_json
        self.remarks_waits = progress and not quiet and not as_json and not self.shows_progress
        self._writes = False
        self._makes_index = False
        self._resources = ExitStack()
        self.room: Room | None = None
        """What keeps the store under its cap, once it is open to write."""

    def create_home(self) -> None:
        """Make the home if there is none, readable by its owner only, and open it to write. Raises `BadReference`."""
        self._writes = True
        if not self.has_home:
            self._makes_index = True
            try:
                make_private_folder(self.home)
                self._open_all()
            except OSError as error:
                if isinstance(error, CyberKVError):
                    raise
                raise _bad_home(self.home, error.strerror) from error

    def _open_all(self) -> None:
        # The store last: a home counts as made when it has one.
        _ = self.index, self.store

    def open_to_write(self, *, makes_index: bool = False) -> None:
        """Allow changes to the home, `makes_index` also a new index. Raises `NotFound` without a home."""
        self.require_home()
        self._writes = True
        self._makes_index = makes_index

    @property
    def has_home(self) -> bool:
        """Whether anything was ever recorded here."""
        return (self.home / "store").is_dir()

    def require_home(self) -> None:
        """Raise `NotFound` if there is no home yet."""
        if not self.has_home:
            raise NotFound(
                f"nothing recorded at {self.home}",
                hint="`cyberkv model add smollm2` makes a home; or give another --home",
                home=str(self.home),
            )

    @cached_property
    def store(self) -> "DiskStore":
        """The blocks. Raises `NotFound` for a home that does not exist."""
        from ..cybergraph.store.disk import DiskStore

        if not self._writes:
            self.require_home()
        store = self._resources.enter_context(DiskStore(self.home / "store", read_only=not self._writes))
        if self._writes:
            from ..cybergraph.keeping.room import Room

            self.room = self._resources.enter_context(closing(Room(store, lambda: self.index, self.has)))
        return store

    @cached_property
    def _probe(self) -> "Probe":
        from ..cybergraph.peers.probe import Probe  # what knows HTTP is not imported before somebody is asked

        return Probe(open_source)

    def has(self, source: str, root: "Cid") -> bool:
        """Say whether a source has a conversation now; one that does not answer within seconds has nothing."""
        return self._probe(source, root)

    def inspect(self) -> "DiskStore":
        """Open the blocks once more, to look through them: what is read there does not count as used."""
        from ..cybergraph.store.disk import DiskStore

        _ = self.store  # first: a database that is open to write can be read, and not the other way round
        return self._resources.enter_context(DiskStore(self.home / "store", read_only=True))

    @cached_property
    def index(self) -> "Index":
        """Prefix keys, names and publications. Raises `NotFound` for a home that does not exist."""
        from ..cybergraph.index import Index

        if not self._writes:
            self.require_home()
        if not self._makes_index and not (self.home / "index").is_dir():
            raise NotFound(f"the index of {self.home} is gone", hint="run `cyberkv index rebuild`")
        # A home on a medium that takes no writes can be read all the same.
        read_only = not self._writes and not os.access(self.home / "index/data.mdb", os.W_OK)
        opened = Index(self.home / "index", make=self._makes_index, read_only=read_only)
        if (self.home / "trust" / "signers").exists():
            from ..cybergraph.access.trust import TrustFolder

            with suppress(Corrupt):  # who asks whom to trust is told; until then it is nobody
                opened.trust(TrustFolder(self.home / "trust").trusted())
        if opened.was_rekeyed and not self.quiet:
            click.echo("the index of this home is now under a secret of its own: index.secret", err=True)
        return self._resources.enter_context(opened)

    @cached_property
    def registry(self) -> "Registry":
        """The models known here."""
        from ..runtime.models.registry import Registry

        return Registry(self.home / "models")

    def now(self) -> str:
        """Give the time as RFC 3339 in UTC, to the second."""
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def now_s(self) -> int:
        """Give the whole seconds since 1970."""
        return int(time.time())

    def clock_s(self) -> float:
        """Give seconds on a clock that only runs forward."""
        return time.perf_counter()

    def close(self) -> None:
        """Close what was opened."""
        self._resources.close()


def _check_home(home: Path) -> None:
    try:
        str(home).encode()
        home.stat()
    except FileNotFoundError:
        return
    except UnicodeEncodeError as error:
        raise _bad_home(home, "its name is not UTF-8") from error
    except OSError as error:
        raise _bad_home(home, error.strerror) from error


def _bad_home(home: Path, reason: str | None) -> BadReference:
    return BadReference(f"{home!s:.200} cannot be a home: {reason}", hint="give another --home", home=str(home)[:200])


pass_session = click.make_pass_decorator(Session)
