"""What sealing costs beside publishing openly, and what readers cost.

Leaves are of 256 KiB under sha2-256, so that both sides hash; the page cache is warm. Publishing writes a CAR file both
times, and nothing else; fetching reads that file into a new store, durably.
"""

import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cyberkv.cybergraph.access import ContentKey, Identity, SealedPeer, make_grant, open_grant
from cyberkv.cybergraph.access.lineage import Lineage
from cyberkv.cybergraph.access.opened import OpenedTable
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.nodes import Sealed
from cyberkv.cybergraph.peers import CarFilePeer
from cyberkv.cybergraph.store import DiskStore
from cyberkv.cybergraph.transfer import fetch, plan_publish, publish_car
from cyberkv.cybergraph.transfer.granting import grant_access
from cyberkv.cybergraph.transfer.sealed import publish_sealed
from cyberkv.cybergraph.transfer.single import bring, bring_node

from . import made_up
from .common import Claim, best_s, options, report, scratch
from .store_peers import MIB

LEAF_BYTES = 256 << 10
READERS = 100
SPEED_BAR, GRANT_BAR_MS, GROWTH_BAR = 0.6, 50.0, 1.5


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    size_bytes, repeats = (16 * MIB, 1) if args.quick else (1 << 30, 3)
    claims: list[Claim] = []
    figures: dict[str, float] = {}
    with scratch(args.folder) as folder:
        _moving(folder, size_bytes, repeats, claims, figures)
    _readers(claims, figures)
    return report(args, "Sealing", claims, figures)


def _moving(folder: Path, size_bytes: int, repeats: int, claims: list[Claim], figures: dict[str, float]) -> None:
    issuer = Identity.new()
    with DiskStore(folder / "home" / "store") as store, Index(folder / "home" / "index") as index:
        root = made_up.record(store, size_bytes, leaf_bytes=LEAF_BYTES, leaf_hash="sha2-256")
        plan = plan_publish(store, index, root, "public")
        opened_s, sealed_s = [], []
        for _ in range(repeats):  # in turns, and each sealing under a new key: nothing of it is there yet
            opened_s.append(best_s(lambda: publish_car(store, plan, folder / "open.car"), 1))
            lineage = Lineage.begin("talk", issuer.public().signing, "", alg=1, kem="x25519")
            before_s = time.perf_counter()
            lineage, done = publish_sealed(store, index, root, lineage, issuer, car=folder / "sealed.car")
            sealed_s.append(time.perf_counter() - before_s)
        name = "seal + publish to a CAR, speed vs publish openly"
        claims.append(Claim(name, min(opened_s) / min(sealed_s), SPEED_BAR))
        figures |= {"publish openly, GB/s": size_bytes / min(opened_s) / 1e9,
                    "seal + publish, GB/s": size_bytes / min(sealed_s) / 1e9}  # fmt: skip
        _growing(store, index, root, lineage, issuer, size_bytes, claims)
        with CarFilePeer(folder / "sealed.car") as peer:
            sealed = bring_node(done.root, [peer], Sealed)
            table = OpenedTable(sealed, lineage.content_key, bring(sealed.manifest, [peer]))
    opened_s, sealed_s = [], []
    for _ in range(repeats):
        opened_s.append(_fetch_s(folder, root, CarFilePeer(folder / "open.car")))
        sealed_s.append(_fetch_s(folder, root, SealedPeer(CarFilePeer(folder / "sealed.car"), table)))
    claims.append(Claim("open + fetch, speed vs fetch openly", min(opened_s) / min(sealed_s), SPEED_BAR))
    figures |= {"fetch openly, GB/s": size_bytes / min(opened_s) / 1e9,
                "open + fetch, GB/s": size_bytes / min(sealed_s) / 1e9}  # fmt: skip


def _fetch_s(folder: Path, root: Cid, peer: CarFilePeer | SealedPeer) -> float:
    with peer, DiskStore(folder / "other" / "store") as store, Index(folder / "other" / "index") as index:
        took_s = best_s(lambda: fetch(store, index, root, [peer]), 1)
    shutil.rmtree(folder / "other")
    return took_s


def _growing(
    store: DiskStore, index: Index, root: Cid, lineage: Lineage, issuer: Identity, size_bytes: int, claims: list[Claim]
) -> None:
    """Add a reader to what was sealed, and to something a sixteenth as large."""
    small_root = made_up.record(
        store, max(made_up.BLOCK_BYTES, size_bytes // 16), leaf_bytes=LEAF_BYTES, leaf_hash="sha2-256"
    )
    begun = Lineage.begin("small", issuer.public().signing, "", alg=1, kem="x25519")
    small, _ = publish_sealed(store, index, small_root, begun, issuer)
    times = []
    large, _ = publish_sealed(store, index, root, lineage, issuer)
    for state in (large, small):
        wider = state.with_reader("new", Identity.new().public())
        times.append(best_s(partial(grant_access, store, index, wider, issuer), 20))
    claims.append(Claim("add a reader, 16 times the size / the size", times[0] / times[1], GROWTH_BAR, at_most=True))


def _readers(claims: list[Claim], figures: dict[str, float]) -> None:
    issuer, key, root = Identity.new(), ContentKey.new(), Cid.of(b"", "raw", "sha2-256")
    readers = [Identity.new() for _ in range(READERS)]
    public = [reader.public() for reader in readers]
    made = [make_grant(issuer, key, public, lineage=bytes(16), epoch=1, root=root, alg=1)]
    grant_s = best_s(
        lambda: made.append(make_grant(issuer, key, public, lineage=bytes(16), epoch=1, root=root, alg=1)), 5
    )
    claims.append(Claim(f"grant for {READERS} readers", grant_s * 1e3, GRANT_BAR_MS, unit="ms", at_most=True))
    figures["open a grant of as many, ms"] = best_s(lambda: open_grant(made[0], readers[-1]), 5) * 1e3
    figures["size of it, bytes"] = float(len(made[0].encode()))


if __name__ == "__main__":
    raise SystemExit(main())
