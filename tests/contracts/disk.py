"""What the tests of the disk store share: damage on disk, and work in another process."""

import subprocess
import sys
import textwrap
from pathlib import Path

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.store.catalog import places


def flip(store: DiskStore, cid: Cid, *, at: int = 0) -> None:
    """Flip one bit of a stored block, on disk."""
    if cid.codec == "raw":
        place = dict(places(store._database))[cid]
        with (store.path / place.slab.file_name).open("r+b") as file:
            file.seek(place.offset + at)
            byte = file.read(1)[0]
            file.seek(place.offset + at)
            file.write(bytes([byte ^ 1]))
    else:
        data = bytearray(store.get(cid))
        data[at] ^= 1
        store._database.write(lambda txn: store._catalog.put_node(txn, cid, bytes(data)))


def is_in_memory(folder: Path) -> bool:
    """Say whether a file system is one that is all page cache."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True)
    return kind.stdout.strip() in ("tmpfs", "ramfs")


def in_child(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run code in another process; `path` is the first argument."""
    return subprocess.run(_command(code, *args), capture_output=True, text=True, timeout=60, check=False)


def beside_child(code: str, *args: object) -> subprocess.Popen[str]:
    """Start code in another process and go on; talk to it by lines on its standard streams."""
    return subprocess.Popen(_command(code, *args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _command(code: str, *args: object) -> list[str]:
    header = """
        import os, resource, signal, sys
        from pathlib import Path
        from cyberkv.cybergraph.store import DiskStore
        from tests.contracts.synthetic import blocks, make_model
        path, args = Path(sys.argv[1]), sys.argv[2:]
    """
    return [sys.executable, "-c", textwrap.dedent(header) + textwrap.dedent(code), *map(str, args)]
