"""Publishing and fetching against the least that could be done with the same bytes.

Publishing is compared with hashing the leaves on two threads and then writing them plainly, durably, through the page
cache or around it, whichever is faster. Fetching, over
loopback from a real `serve` process into a fresh home, checked and durable, is compared with reading the same stream
from the same process and throwing it away. Memory is the peak of the whole process, interpreter included. Leaves are
of 256 KiB; the page cache is warm. `--full` moves 4 GiB where memory is measured.
"""

import http.client
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from mmap import mmap
from pathlib import Path

from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import HASHES, Cid, HashName
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import plan_publish, publish_car, publish_here

from . import made_up
from .common import Claim, best_in_turns_s, options, report, scratch
from .store_peers import MIB, PIECE_BYTES, write_raw

LEAF_BYTES = 256 << 10
HELD_BYTES = 64 * MIB
"""What is written again and again stays in memory."""
PUBLISH_BAR, MEMORY_BAR_MIB = 1.5, 256
FETCH_BARS: dict[HashName, float] = {"sha2-256": 0.6, "blake3": 0.8}


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    size_bytes, repeats = (32 * MIB, 1) if args.quick else (1 << 30, 3)
    claims: list[Claim] = []
    figures: dict[str, float] = {}
    with scratch(args.folder) as name:
        for hash_name in FETCH_BARS:
            folder = name / hash_name
            root = _record(folder / "home", size_bytes, hash_name)
            _publishing(folder, root, hash_name, size_bytes, repeats, claims, figures)
            _fetching(folder, root, hash_name, repeats, claims, figures)
            shutil.rmtree(folder)
        moved_bytes = 4 << 30 if args.full else size_bytes
        _memory(name, moved_bytes, claims, figures)
    return report(args, "Transfer", claims, figures)


def _record(home: Path, size_bytes: int, hash_name: HashName) -> Cid:
    with DiskStore(home / "store") as store, Index(home / "index") as index:
        root = made_up.record(store, size_bytes, leaf_bytes=LEAF_BYTES, leaf_hash=hash_name)
        index.publish(root, closure(store, root))
    return root


def _publishing(
    folder: Path,
    root: Cid,
    hash_name: HashName,
    size_bytes: int,
    repeats: int,
    claims: list[Claim],
    figures: dict[str, float],
) -> None:
    pieces = _pieces(size_bytes)
    with DiskStore(folder / "home" / "store") as store, Index(folder / "index") as index:
        plan = plan_publish(store, index, root, "public")
        ours = {
            "a CAR": lambda: publish_car(store, plan, folder / "out.car"),
            "the published set": lambda: publish_here(store, index, plan),
        }
        for to, work in ours.items():
            peers = [lambda direct=direct: _hash_and_write(pieces, hash_name, folder / "plain", direct=direct)
                     for direct in (False, True)]  # fmt: skip
            work_s, buffered_s, direct_s = best_in_turns_s(work, *peers, repeats=repeats)
            ratio = work_s / min(buffered_s, direct_s)
            name = f"{hash_name}: publish to {to} vs hash + faster write"
            claims.append(Claim(name, ratio, PUBLISH_BAR, at_most=True))
            figures |= {
                f"{hash_name}: publish to {to}, GB/s": size_bytes / work_s / 1e9,
                f"{hash_name}: hash + write beside {to}, GB/s": size_bytes / buffered_s / 1e9,
                f"{hash_name}: hash + O_DIRECT write beside {to}, GB/s": size_bytes / direct_s / 1e9,
            }
        (folder / "out.car").unlink()


def _pieces(size_bytes: int) -> list[memoryview]:
    """The same leaves, page-aligned in memory; as many as stay there, again and again."""
    held = memoryview(mmap(-1, min(HELD_BYTES, size_bytes)))
    leaves = made_up.leaves(LEAF_BYTES)
    for at in range(0, len(held), LEAF_BYTES):
        held[at : at + LEAF_BYTES] = next(leaves)
    cut = [held[at : at + PIECE_BYTES] for at in range(0, len(held), PIECE_BYTES)]
    return list(islice(cycle(cut), size_bytes // PIECE_BYTES))


def _hash_and_write(pieces: list[memoryview], hash_name: HashName, path: Path, *, direct: bool) -> None:
    def work(piece: memoryview) -> None:
        for at in range(0, len(piece), LEAF_BYTES):
            HASHES[hash_name](piece[at : at + LEAF_BYTES])

    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(work, pieces):
            pass
    write_raw(path, pieces, direct=direct)


def _fetching(
    folder: Path, root: Cid, hash_name: HashName, repeats: int, claims: list[Claim], figures: dict[str, float]
) -> None:
    with serving(folder / "home") as (url, _):
        rates: list[tuple[float, float]] = []
        for _ in range(repeats):
            drained_s, drained_bytes = _drain(url, root)
            told = fetched(folder / "other", root, url)
            rates.append((drained_bytes / drained_s, told["bytes_fetched"] / told["seconds"]))
    drain, fetch = (max(each) for each in zip(*rates, strict=True))
    claims.append(Claim(f"{hash_name}: fetch against an unverified drain", fetch / drain, FETCH_BARS[hash_name]))
    figures |= {f"{hash_name}: fetch, GB/s": fetch / 1e9, f"{hash_name}: unverified drain, GB/s": drain / 1e9}


def _memory(folder: Path, size_bytes: int, claims: list[Claim], figures: dict[str, float]) -> None:
    root = _record(folder / "home", size_bytes, "blake3")
    with serving(folder / "home") as (url, server):
        before_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        fetched(folder / "other", root, url)
        client_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        status = Path(f"/proc/{server}/status").read_text()
    server_mib = int(status.split("VmHWM:")[1].split()[0]) / 1024
    for side, peak_mib in {"fetch": client_mib, "serve": server_mib}.items():
        name = f"peak memory of {side}, {size_bytes >> 20:,} MiB moved"
        claims.append(Claim(name, peak_mib, MEMORY_BAR_MIB, unit="MiB", at_most=True))
    figures["peak memory of any fetch before, MiB"] = before_mib


def _command(home: Path, *line: object) -> list[str]:
    return [sys.executable, "-m", "cyberkv.cli", "--json", "-q", "--home", str(home), *map(str, line)]


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, int]]:
    """Give the URL and the process id of a gateway."""
    with subprocess.Popen(
        _command(home, "serve", "--listen", "127.0.0.1:0"), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"], server.pid
        finally:
            server.terminate()


def _drain(url: str, root: Cid) -> tuple[float, int]:
    """Read everything below the root as one stream and throw it away: seconds and bytes."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    buffer, read_bytes = bytearray(MIB), 0
    start_s = time.perf_counter()
    connection.request("GET", f"/ipfs/{root}?format=car")
    answer = connection.getresponse()
    while count := answer.readinto(buffer):
        read_bytes += count
    connection.close()
    return time.perf_counter() - start_s, read_bytes


def fetched(home: Path, root: Cid, url: str) -> dict[str, float]:
    shutil.rmtree(home, ignore_errors=True)
    done = subprocess.run(_command(home, "fetch", root, "--from", url), stdout=subprocess.PIPE, check=True)
    shutil.rmtree(home)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    raise SystemExit(main())
