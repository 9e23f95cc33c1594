"""Keys, links and grants that are not what they seem: forms of their bytes, places on disk, and who makes them."""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph import dagcbor
from cyberkv.cybergraph.access import (
    ContentKey,
    Identity,
    PublicIdentity,
    ShareLink,
    key_names,
    load_key,
    make_grant,
    open_grant,
    save_key,
)
from cyberkv.cybergraph.access import passphrase as passphrase_module
from cyberkv.cybergraph.access.folder import AccessFolder
from cyberkv.cybergraph.access.keyfile import KeyFile
from cyberkv.cybergraph.access.lineage import Lineage, Pin, Publication, Reader
from cyberkv.cybergraph.access.pagetable import Manifest, Page, SealedLeaf
from cyberkv.cybergraph.access.passphrase import Lock, lock
from cyberkv.cybergraph.access.proof import Challenge
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagcbor import Value, decode, encode
from cyberkv.cybergraph.errors import (
    AuthFailed,
    BadKey,
    BadReference,
    Corrupt,
    CyberKVError,
    LimitExceeded,
    MalformedNode,
    NotARecipient,
    Refused,
    UnsupportedFormat,
)
from cyberkv.cybergraph.limits import MAX_NODE_BYTES
from cyberkv.cybergraph.nodes import Grant, Node, PinSet, Ring, Sealed
from cyberkv.cybergraph.nodes.kinds import Maybe
from tests.access.sealed import ISSUER, KEY, LINEAGE, OTHER, READER

ROOT = Cid.of(b"manifest", "raw", "sha2-256")
NODE = Cid.of(b"node", "dag-cbor", "sha2-256")


def grant(*readers: PublicIdentity, kem: str = "x25519", epoch: int = 1, key: ContentKey = KEY) -> Grant:
    return make_grant(
        ISSUER, key, readers, lineage=LINEAGE, epoch=epoch, root=ROOT, alg=1, kem=kem  # type: ignore[arg-type]
    )  # fmt: skip


SEALED_LEAF = SealedLeaf(ROOT, bytes(32))
LOCK = Lock(bytes(16), 64 << 10, 3, 4, bytes(48))
LINEAGE_OF_ALL = replace(
    Lineage.begin("talk", bytes(32), "2026-01-01T00:00:00Z", alg=1, kem="x25519").with_reader("one", READER.public()),
    removed=Reader("two", str(OTHER.public())), pins=(Pin("http://127.0.0.1:5001", "cyberkv/talk", NODE, 1),),
    last=Publication(NODE, 1, NODE, NODE, NODE, ROOT, NODE, bytes(32), 1, 1, 1), earlier=(NODE,),
)  # fmt: skip
SAMPLES: dict[str, Node] = {
    "sealed": Sealed(1, LINEAGE, 1, bytes(32), NODE, ROOT, NODE),
    "grant": grant(READER.public()),
    "pinset": PinSet((ROOT,)),
    "ring": Ring((READER.public().ring,)),
    "challenge": Challenge("access-sig/ed25519/1", NODE, ROOT, "https://example.net", 1, bytes(32)),
    "manifest": Manifest(b"root", b"model", 64, (SEALED_LEAF,), bytes(32), ()),
    "page": Page(b"segment", 0, None, (b"block",), (SEALED_LEAF,)),
    "key": KeyFile(bytes(range(32)), None),
    "locked key": KeyFile(None, LOCK),
    "lineage": LINEAGE_OF_ALL,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_wrong_field_is_refused(name: str) -> None:
    node = SAMPLES[name]
    assert type(node).decode(node.encode()) == node
    value = decode(node.encode())
    assert isinstance(value, dict)
    for field, kind in type(node).KINDS.items():
        others: list[Value] = [-1, True, {"zz": 0}, [["x"]], [{}], "\ud7ff" * 5000, bytes(2 << 10) * 600]
        others += [] if isinstance(kind, Maybe) else [None]
        for other in others:
            with pytest.raises(Corrupt):
                type(node).decode(dagcbor._encode({**value, field: other}, 9))
        with pytest.raises(MalformedNode) as caught:
            type(node).decode(encode({key: each for key, each in value.items() if key != field}))
        assert caught.value.data["field"] == field


def other_forms(data: bytes) -> dict[str, bytes]:
    """One node in encodings that are not its own. Its map has fewer than 24 entries, the last of them `version`: 1."""
    value = decode(data)
    assert isinstance(value, dict)
    head, first = data[:1], encode({next(iter(value)): next(iter(value.values()))})[1:]
    more = bytes([head[0] + 1])
    return {
        "a byte behind it": data + b"\0",
        "a byte less": data[:-1],
        "nothing": b"",
        "no end": b"\xbf" + data[1:] + b"\xff",
        "a long head": b"\xb8" + bytes([head[0] & 31]) + data[1:],
        "a key twice": more + first + data[1:],
        "a field more": encode({**value, "zz": 0}),
        "a tag around it": b"\xd8\x18" + data,
        "a number in two bytes": data.replace(b"gversion\x01", b"gversion\x18\x01"),
        "a version that is a float": data.replace(b"gversion\x01", b"gversion\xf9\x3c\x00"),
        "a version that is no number": data.replace(b"gversion\x01", b"gversion\xf9\x7e\x00"),
        "a version that is true": data.replace(b"gversion\x01", b"gversion\xf5"),
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_every_other_encoding_is_refused(name: str) -> None:
    node = SAMPLES[name]
    data = node.encode()
    for form, bad in other_forms(data).items():
        assert bad != data, form
        with pytest.raises(Corrupt):
            type(node).decode(bad)
    with pytest.raises(UnsupportedFormat):
        type(node).decode(data.replace(b"gversion\x01", b"gversion\x02"))


LINKS_OF_OTHER_FORMS = {
    "identity": b"\x01\x55\x00\x20" + bytes(32), "sha1": b"\x01\x55\x11\x14" + bytes(20),
    "md5": b"\x01\x55\xd5\x01\x10" + bytes(16), "version 0": b"\x12\x20" + bytes(32),
    "dag-pb": b"\x01\x70\x12\x20" + bytes(32), "sha2-512": b"\x01\x55\x13\x40" + bytes(64),
    "sha2-256 cut short": b"\x01\x55\x12\x10" + bytes(16),
}  # fmt: skip


@pytest.mark.parametrize("name", LINKS_OF_OTHER_FORMS)
def test_a_grant_does_not_name_its_root_by_another_kind_of_cid(name: str) -> None:
    data = grant(READER.public()).encode()
    link = LINKS_OF_OTHER_FORMS[name]
    tail = b"\0" + link
    bad = data.replace(b"\xd8\x2a\x58\x25\0" + ROOT, b"\xd8\x2a\x58" + bytes([len(tail)]) + tail)
    assert bad != data
    with pytest.raises(Corrupt):
        Grant.decode(bad)


def test_errors_about_secret_files_do_not_repeat_them(tmp_path: Path) -> None:
    """Of one byte too few, and as text: what is wrong is said, what was there is not."""
    secret = bytes(range(65, 96))
    for name, field in (("short", encode(secret)), ("text", encode(secret.decode()))):
        bad = KeyFile(bytes(32), None).encode().replace(encode(bytes(32)), field)
        path = save_key(tmp_path / "keys", name, READER, None)
        path.write_bytes(bad)
        with pytest.raises(BadKey) as caught:
            load_key(tmp_path / "keys", path.stem, None)
        shown = f"{caught.value}{caught.value.data}{caught.value.__cause__!r}{caught.value.__cause__}"
        assert secret[:6].decode() not in shown
        assert "seed" in shown
    assert "ABCDEF" not in repr(KeyFile(secret + b"X", None))


def test_pages_of_a_grant_for_nobody_or_too_many() -> None:
    made = grant(READER.public())
    for wraps in ((), made.wraps * 1024):
        with pytest.raises(Corrupt):
            Grant.decode(encode({**decode(made.encode()), "wraps": list(wraps)}))  # type: ignore[dict-item]


def test_a_grant_that_no_reader_could_read_is_not_made() -> None:
    """Of 1,024 long wraps a grant would be larger than a node may be."""
    public = READER.public(pq=True)
    readers = [replace(public, sealing=Identity(n.to_bytes(32, "big")).public().sealing) for n in range(513)]
    assert len(grant(*readers[:511], kem="mlkem768-x25519").encode()) <= MAX_NODE_BYTES
    with pytest.raises(LimitExceeded):
        grant(*readers, kem="mlkem768-x25519")


def test_a_long_key_that_is_none_is_refused_when_it_is_used() -> None:
    none = b"\xff" * 1184
    bad = replace(READER.public(pq=True), pq=none, pq_digest=hashlib.sha256(none).digest())
    with pytest.raises(BadKey):
        grant(PublicIdentity.parse(str(bad)), kem="mlkem768-x25519")


@pytest.mark.parametrize("kem", ["x25519", "mlkem768-x25519"])
@pytest.mark.parametrize("fill", [0, 1, 255])
def test_wraps_that_hold_nothing_open_for_nobody(kem: str, fill: int) -> None:
    size = 80 if kem == "x25519" else 1168
    made = replace(grant(READER.public(pq=True), kem=kem), wraps=(bytes([fill]) * size,) * 2)
    with pytest.raises(NotARecipient):
        open_grant(replace(made, signature=ISSUER.signing.sign(made.body())), READER)


def test_wraps_of_one_kind_in_a_grant_of_the_other() -> None:
    made = grant(READER.public(pq=True))
    other = grant(READER.public(pq=True), kem="mlkem768-x25519")
    for crossed in (replace(made, wraps=other.wraps), replace(made, kem=other.kem)):
        signed = replace(crossed, signature=ISSUER.signing.sign(crossed.body()))
        with pytest.raises(Corrupt):
            open_grant(signed, READER)


def test_a_link_of_one_epoch_opens_nothing_of_the_next() -> None:
    issuer = ISSUER.public().signing
    link = ShareLink.make(NODE, KEY, KEY.commitment(issuer, LINEAGE, 1))
    link.confirm(KEY.commitment(issuer, LINEAGE, 1))
    for commitment in (KEY.commitment(issuer, LINEAGE, 2), KEY.commitment(OTHER.public().signing, LINEAGE, 1)):
        with pytest.raises(AuthFailed):
            link.confirm(commitment)


SECRET = str(ShareLink.make(NODE, KEY, bytes(32))).split("#v1.")[1]


@pytest.mark.parametrize("text", [
    f"cyberkv://{NODE}?v1.{SECRET}", f"cyberkv://{NODE}?key={SECRET}#v1.{SECRET}", f"cyberkv://{NODE}/{SECRET}",
    f"cyberkv://{SECRET}@{NODE}#v1.{SECRET}", f"cyberkv://{NODE}#v1.{SECRET}?x=1", f"cyberkv://{NODE}#v1.{SECRET} ",
    f"CYBERKV://{NODE}#v1.{SECRET}", f"cyberkv://{NODE}/..#v1.{SECRET}", f"cyberkv://{NODE}\n#v1.{SECRET}",
    f"cyberkv://{NODE}#v1p.{SECRET}", f"cyberkv://{ROOT}x#v1.{SECRET}", f"cyberkv://{NODE}#v1.{SECRET.upper()}%41",
])  # fmt: skip
def test_a_secret_anywhere_else_is_refused_and_not_repeated(text: str) -> None:
    assert ShareLink.parse(f"cyberkv://{NODE}#v1.{SECRET}").open(None) == KEY
    with pytest.raises(BadReference) as caught:
        ShareLink.parse(text)
    shown = f"{caught.value}{caught.value.hint}{caught.value.data}{caught.value.__context__!r}"
    assert SECRET[:12] not in shown


def test_a_passphrase_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadKey):
        lock(bytes(32), "half a surrogate: \udcff", "key")


def test_memory_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Argon:
        def __init__(self, **_: object) -> None: ...

        def derive(self, _: bytes) -> bytes:
            raise MemoryError

    monkeypatch.setattr(passphrase_module, "Argon2id", Argon)
    with pytest.raises(BadKey):
        lock(bytes(32), "words", "key")


def spoil_with_link(folder: Path) -> None:
    real = folder.with_name("real")
    real.mkdir(mode=0o700)
    save_key(real, "me", READER, None)
    folder.symlink_to(real)


def spoil_with_broken_link(folder: Path) -> None:
    folder.symlink_to(folder.with_name("nowhere"))


def spoil_with_file(folder: Path) -> None:
    folder.write_bytes(b"")


def spoil_with_lax_folder(folder: Path) -> None:
    folder.mkdir(mode=0o755)


@pytest.mark.parametrize("spoil", [spoil_with_link, spoil_with_broken_link, spoil_with_file, spoil_with_lax_folder])
def test_a_folder_of_keys_that_is_not_ours_alone(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = tmp_path / "keys"
    spoil(folder)
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    for attempt in (lambda: save_key(folder, "new", READER, None), lambda: load_key(folder, "me", None)):
        with pytest.raises(CyberKVError) as caught:
            attempt()
        assert caught.value.exit_code in (3, 6)
    assert {path: path.lstat().st_ino for path in tmp_path.rglob("*")} == before


def test_of_many_threads_who_make_one_key_one_wins(tmp_path: Path) -> None:
    def attempt(number: int) -> bool:
        try:
            save_key(tmp_path / "keys", "me", Identity(bytes([number]) * 32), None)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(attempt, range(1, 17)))
    assert won.count(True) == 1
    assert load_key(tmp_path / "keys", "me", None).reveal() == bytes([won.index(True) + 1]) * 32
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["me.key"]


def test_what_is_left_of_a_killed_process_is_in_nobody_s_way(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    (folder / f".me-{os.getpid()}").write_bytes(b"half a key")
    save_key(folder, "me", READER, None)
    assert list(key_names(folder)) == ["me"]


@pytest.mark.parametrize("row", [b"", bytes(7), bytes(39), bytes(41)])
def test_a_damaged_memory_of_epochs_lets_no_earlier_one_pass(tmp_path: Path, row: bytes) -> None:
    folder = AccessFolder(tmp_path / "access")
    folder.see(grant(epoch=7))
    with pytest.raises(CyberKVError):
        folder.check_seen(grant(epoch=6))
    [path] = (tmp_path / "access" / "seen").iterdir()
    path.write_bytes(row)
    with pytest.raises(Corrupt):
        folder.check_seen(grant(epoch=6))


def test_a_pipe_in_place_of_what_is_kept_does_not_keep_us_waiting(tmp_path: Path) -> None:
    folder = AccessFolder(tmp_path / "access")
    folder.see(grant())
    folder.keep(Lineage.begin("talk", bytes(32), "2026-01-01T00:00:00Z", alg=1, kem="x25519"))
    for name in ("seen", "given"):
        [path] = (tmp_path / "access" / name).iterdir()
        path.unlink()
        os.mkfifo(path)
    for attempt in (
        lambda: folder.check_seen(grant()),
        lambda: folder.lineage("talk"),
        lambda: list(folder.lineages()),
    ):
        with pytest.raises(OSError, match="regular"):
            attempt()
