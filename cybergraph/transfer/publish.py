"""Act on a publish plan: write it as a CAR file, or mark it for the gateway of this home. Both may be repeated."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ..car import write_car
from ..cid import Cid
from ..database import disk_error
from ..errors import CyberKVError, NotFound
from ..index import Index
from ..store.base import Store
from .plan import PublishPlan
from .progress import SILENT, Phase, Progress


def publish_car(store: Store, plan: PublishPlan, path: Path, progress: Progress = SILENT) -> int:
    """Write everything in the plan as one CAR file and return its size in bytes.

    The file appears whole, replacing another of that name, or not at all. Every block is verified on its way.
    Raises `NotFound` for a folder that is not there, `BlockNotFound`, `DigestMismatch`, `TierFull`.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            with unfinished.open("xb") as out:
                size_bytes = write_car(out, [plan.root], _blocks(store, plan, "write", progress))
                out.flush()
                os.fsync(out.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except FileNotFoundError as error:
        raise NotFound(f"no folder {path.parent}", hint="make it, or write elsewhere", path=str(path)) from error
    except CyberKVError:
        raise
    except OSError as error:
        raise disk_error(path.parent, error) from error
    return size_bytes


def publish_here(store: Store, index: Index, plan: PublishPlan, progress: Progress = SILENT) -> None:
    """Mark everything in the plan as public, so that the gateway of this home serves it.

    Reads and verifies every block first. Raises `BlockNotFound`, `DigestMismatch`; then nothing is marked.
    """
    for _ in _blocks(store, plan, "check", progress):
        pass
    index.publish(plan.root, plan.cids)


def _blocks(store: Store, plan: PublishPlan, phase: Phase, progress: Progress) -> Iterator[tuple[Cid, bytes]]:
    progress.phase(phase, blocks_total=plan.blocks, bytes_total=plan.leaf_bytes)
    store.put_node(plan.conversation)  # its public form may be new; the same bytes are skipped
    for item in plan.items:
        yield item.cid, store.get(item.cid)
        progress.advance(1, item.size_bytes if item.cid.codec == "raw" else 0)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
