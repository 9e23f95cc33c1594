"""Act on a publish plan: write it as a CAR file, or mark it for the gateway of this home. Both may be repeated.

A CAR that was interrupted is begun again, not gone on with: its blocks are all here, so checking the half file would
cost as much as writing it. Until it is whole it has another name, which the next attempt takes over.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from ..car import car_header, write_car
from ..cid import Buffer, Cid
from ..direct import DirectFile
from ..diskerrors import disk_error
from ..errors import CyberKVError, NotFound, Refused
from ..index import Index
from ..private import sync_folder
from ..runs import read_runs
from ..staging import Staging
from ..store.base import Store
from .plan import PublishPlan
from .progress import SILENT, Phase, Progress

RUN_BYTES: Final = 4 << 20
"""Blocks that are read and checked together, on all threads of the store."""
BUDGET_BYTES: Final = 32 << 20
"""Memory for leaves: some are read while others are written."""
_ROOT_LATER: Final = Cid.of(b"", "dag-cbor", "sha2-256")
"""Keeps the place of a root in the header: all CIDs are of one length."""


class Outgoing(Protocol):
    """What leaves as one graph: the plan of a public conversation, or one that was sealed."""

    @property
    def root(self) -> Cid:
        """What the rest hangs on."""

    @property
    def cids(self) -> tuple[Cid, ...]:
        """Everything, in the order in which it is written."""

    @property
    def leaf_bytes(self) -> int:
        """Bytes of the raw blocks."""


def publish_car(store: Store, plan: Outgoing, path: Path, progress: Progress = SILENT) -> int:
    """Write everything in the plan as one CAR file and return its size in bytes.

    Every block is verified on its way. Raises as `write_car_file`, `BlockNotFound`, `DigestMismatch`.
    """
    blocks = (block for run in _runs(store, plan, "write", progress) for block in run)
    return write_car_file(path, blocks, lambda: plan.root)


def write_car_file(path: Path, blocks: Iterable[tuple[Cid, Buffer]], root: Callable[[], Cid]) -> int:
    """Write blocks that were hashed as one CAR file and return its size in bytes; `root` is asked when all are written.

    The file appears whole, replacing another of that name, or not at all. Raises `NotFound` for a folder that is not
    there, `Refused` while another process writes the same file, `TierFull`, and what `blocks` raises.
    """
    try:
        with _unfinished(path) as (unfinished, fd):
            with DirectFile(fd) as out:
                size_bytes = write_car(out, [_ROOT_LATER], blocks, hashed=True)
            os.pwrite(fd, car_header([root()]), 0)
            os.fsync(fd)
            unfinished.replace(path)
        sync_folder(path.parent)
    except FileNotFoundError as error:
        raise NotFound(f"no folder {path.parent}", hint="make it, or write elsewhere", path=str(path)) from error
    except CyberKVError:
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        raise disk_error(path.parent, error) from error
    return size_bytes


def publish_here(store: Store, index: Index, plan: Outgoing, progress: Progress = SILENT) -> None:
    """Mark everything in the plan as public, so that the gateway of this home serves it.

    Reads and verifies every block first. Raises `BlockNotFound`, `DigestMismatch`; then nothing is marked.
    """
    for _ in _runs(store, plan, "check", progress):
        pass
    index.publish(plan.root, plan.cids)


def _runs(store: Store, plan: Outgoing, phase: Phase, progress: Progress) -> Iterator[list[tuple[Cid, Buffer]]]:
    progress.phase(phase, blocks_total=len(plan.cids), bytes_total=plan.leaf_bytes)
    if isinstance(plan, PublishPlan):
        store.put_many(plan.made)
    for run in read_runs(store, ((cid, None) for cid in plan.cids), RUN_BYTES, Staging(BUDGET_BYTES).room):
        yield run
        progress.advance(len(run), sum(len(data) for cid, data in run if cid.codec == "raw"))


@contextmanager
def _unfinished(path: Path) -> Iterator[tuple[Path, int]]:
    """Give an empty file beside `path`, ours alone, that is gone afterwards unless it was renamed.

    Its name is always the same, so that what a killed process left is taken over and does not pile up.
    """
    digest = hashlib.sha256(path.name.encode(errors="surrogateescape")).hexdigest()
    unfinished = path.with_name(f".{digest[:16]}.car.part")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ours = False
        else:  # another may have held it until now, and given the file its final name
            ours = unfinished.exists() and os.path.samestat(os.fstat(fd), unfinished.stat())
        if not ours:
            raise Refused(f"another process is writing {path}", hint="wait for it, or write elsewhere", path=str(path))
        try:
            os.ftruncate(fd, 0)
            yield unfinished, fd
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    finally:
        os.close(fd)
