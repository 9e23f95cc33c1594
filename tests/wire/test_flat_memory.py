"""Four times as much moves in the same memory, on both sides, in real processes."""

import json
import subprocess
import sys
from pathlib import Path

from cyberkv.benchmarks import made_up
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore

SMALL_BYTES = 32 << 20
BUDGET_BYTES = 16 << 20
MOST_GROWTH_KIB = 16 << 10

PEAK = """
from pathlib import Path
def peak_kib(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
SERVER = (
    PEAK
    + """
import sys
from cyberkv.cybergraph.gateway import Published, build_app, serve
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
home = Path(sys.argv[1])
with DiskStore(home / "store", read_only=True) as store, Index(home / "index") as index:
    try:
        serve(build_app(Published(store, index)), "127.0.0.1", 0, lambda url: print(url, flush=True))
    except KeyboardInterrupt:
        print(peak_kib())
"""
)
READER = (
    PEAK
    + """
import sys
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.peers import open_peer
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import fetch
home, root, source, budget = Path(sys.argv[1]), Cid.parse(sys.argv[2]), sys.argv[3], int(sys.argv[4])
with DiskStore(home / "store") as store, Index(home / "index") as index, open_peer(source) as peer:
    report = fetch(store, index, root, [peer], budget_bytes=budget)
print(peak_kib(), report.bytes_fetched)
"""
)
WRITER = (
    PEAK
    + """
import sys
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import plan_publish, publish_car
home, root = Path(sys.argv[1]), Cid.parse(sys.argv[2])
with DiskStore(home / "store") as store, Index(home / "index") as index:
    publish_car(store, plan_publish(store, index, root, "public"), Path(sys.argv[3]))
print(peak_kib())
"""
)


def python(script: str, *line: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, line)]


def numbers(script: str, *line: object) -> list[int]:
    done = subprocess.run(python(script, *line), stdout=subprocess.PIPE, check=True, text=True)
    return [int(word) for word in done.stdout.split()]


def peaks_kib(folder: Path, size_bytes: int) -> dict[str, int]:
    """Peak memory of who serves, fetches, writes a CAR and reads it."""
    home = folder / "home"
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        root = made_up.record(store, size_bytes, leaf_bytes=64 << 10, leaf_hash="blake3")
        index.publish(root, closure(store, root))
    with subprocess.Popen(python(SERVER, home), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        fetch_kib, fetched_bytes = numbers(READER, folder / "one", root, url, BUDGET_BYTES)
        server.send_signal(2)
        serve_kib = int(server.stdout.read())
    [write_kib] = numbers(WRITER, home, root, folder / "out.car")
    read_kib, read_bytes = numbers(READER, folder / "two", root, folder / "out.car", BUDGET_BYTES)
    assert fetched_bytes == read_bytes > size_bytes
    return {"serve": serve_kib, "fetch": fetch_kib, "publish": write_kib, "fetch from a CAR": read_kib}


def test_memory_does_not_grow_with_what_moves(tmp_path: Path) -> None:
    small = peaks_kib(tmp_path / "small", SMALL_BYTES)
    large = peaks_kib(tmp_path / "large", 4 * SMALL_BYTES)
    grown = {who: large[who] - small[who] for who in small}
    assert all(kib < MOST_GROWTH_KIB < 3 * SMALL_BYTES >> 10 for kib in grown.values()), json.dumps([small, large])
