"""Share links, key files and public keys."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cyberkv.cybergraph.access import Identity, PublicIdentity, ShareLink, is_locked, key_names, load_key, save_key
from cyberkv.cybergraph.access import passphrase as passphrase_module
from cyberkv.cybergraph.access.keyfile import KeyFile
from cyberkv.cybergraph.access.passphrase import lock, unlock
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.errors import AuthFailed, BadKey, BadReference, CyberKVError, NameNotFound, Refused
from tests.access.sealed import KEY, OTHER, READER

ROOT = Cid.of(b"root", "dag-cbor", "sha2-256")
COMMITMENT = bytes(range(32))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that is accepted."""
    monkeypatch.setattr(passphrase_module, "MEMORY_KIB", passphrase_module.LEAST_MEMORY_KIB)
    monkeypatch.setattr(passphrase_module, "PASSES", passphrase_module.LEAST_PASSES)


def test_a_link_opens_and_shows_its_secret_only_as_text() -> None:
    link = ShareLink.make(ROOT, KEY, COMMITMENT)
    text = str(link)
    assert text.startswith(f"cyberkv://{ROOT}#v1.")
    found = ShareLink.parse(text)
    assert found == link
    assert found.open(None) == KEY
    found.confirm(COMMITMENT)
    secret = text.split("#")[1]
    assert secret not in repr(found)
    assert secret[3:20] not in repr(found)


def test_a_link_with_a_password() -> None:
    text = str(ShareLink.make(ROOT, KEY, COMMITMENT, "correct horse"))
    link = ShareLink.parse(text)
    assert link.open("correct horse") == KEY
    for password in (None, "", "correct horsf"):
        with pytest.raises(BadKey) as caught:
            link.open(password)
        assert caught.value.exit_code == 6
    assert str(ShareLink.make(ROOT, KEY, COMMITMENT, "correct horse")) != text


def test_a_link_to_another_version_is_told() -> None:
    with pytest.raises(AuthFailed):
        ShareLink.make(ROOT, KEY, COMMITMENT).confirm(bytes(32))


TEXT = str(ShareLink.make(ROOT, KEY, COMMITMENT))


@pytest.mark.parametrize("text", [
    "", "cyberkv://", TEXT.partition("#")[0], TEXT[:-1], TEXT + "A", TEXT.replace("#v1.", "#v2."),
    TEXT.replace("#", "?"), TEXT.replace("#", "/"), TEXT.replace("cyberkv", "http"), TEXT.replace(".", "", 1),
    TEXT.replace("#v1.", "#v1p."), TEXT + "=", TEXT.replace("#", "#.", 1), f"{TEXT}#{TEXT}", TEXT[:30] + TEXT[31:],
    TEXT.replace(str(ROOT), str(ROOT).upper()), "x" * 100_000,
])  # fmt: skip
def test_what_is_no_link_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        ShareLink.parse(text)
    secret = TEXT.split("#v1.")[1][:20]
    assert secret not in str(caught.value) + repr(caught.value.data) + caught.value.hint


@pytest.mark.parametrize("change", [
    {"memory_kib": 4 << 30}, {"memory_kib": 8}, {"memory_kib": (19 << 10) - 1}, {"passes": 1}, {"passes": 11},
    {"lanes": 200},
])  # fmt: skip
def test_parameters_out_of_bounds_are_not_tried(change: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    locked = lock(bytes(32), "p", "test")
    assert unlock(locked, "p", "test") == bytes(32)
    if change.get("memory_kib", 0) < 1 << 32:
        bad = replace(locked, **change)
        monkeypatch.setattr(passphrase_module, "_stretch", lambda *_: pytest.fail("tried"))
        with pytest.raises(BadKey):
            unlock(bad, "p", "test")


def test_a_lock_opens_for_its_purpose_and_parameters_alone() -> None:
    locked = lock(bytes(32), "p", "test")
    for other, purpose in (
        (locked, "else"),
        (replace(locked, passes=3), "test"),
        (replace(locked, salt=bytes(16)), "test"),
    ):
        with pytest.raises(BadKey):
            unlock(other, "p", purpose)


@pytest.mark.parametrize("passphrase", [None, "a pass phrase"])
def test_a_key_is_kept_and_read_again(tmp_path: Path, passphrase: str | None) -> None:
    folder = tmp_path / "keys"
    path = save_key(folder, "me", READER, passphrase)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert load_key(folder, "me", passphrase).public() == READER.public()
    assert is_locked(folder, "me") == (passphrase is not None)
    assert (READER.reveal() in path.read_bytes()) == (passphrase is None)
    assert list(key_names(folder)) == ["me"]
    assert [each.name for each in folder.iterdir()] == ["me.key"]


def test_a_locked_key_needs_its_passphrase(tmp_path: Path) -> None:
    save_key(tmp_path / "keys", "me", READER, "right")
    for passphrase in (None, "wrong"):
        with pytest.raises(BadKey) as caught:
            load_key(tmp_path / "keys", "me", passphrase)
        assert caught.value.exit_code == 6


def test_no_key_is_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    save_key(folder, "me", READER, None)
    with pytest.raises(Refused):
        save_key(folder, "me", Identity.new(), None)
    assert load_key(folder, "me", None).public() == READER.public()


def test_of_many_who_make_one_key_one_wins(tmp_path: Path) -> None:
    folder = tmp_path / "keys"

    def attempt(number: int) -> bool:
        pid = os.fork()
        if pid == 0:  # as processes, which is how they would meet
            try:
                save_key(folder, "me", Identity(bytes([number]) * 32), None)
            except Refused:
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(attempt, range(1, 9)))
    assert won.count(True) == 1
    assert load_key(folder, "me", None).reveal() == bytes([won.index(True) + 1]) * 32


def make_lax(path: Path) -> None:
    path.chmod(0o644)


def make_folder_lax(path: Path) -> None:
    path.parent.chmod(0o755)


def make_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(100_000))


def hollow(path: Path) -> None:
    path.write_bytes(KeyFile(None, None).encode())


def make_foreign(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    "spoil", [make_lax, make_folder_lax, make_link, make_pipe, cut, empty, extend, hollow, make_foreign]
)
def test_a_key_file_that_is_not_ours_alone_is_refused(tmp_path: Path, spoil: object) -> None:
    path = save_key(tmp_path / "keys", "me", READER, None)
    assert callable(spoil)
    spoil(path)
    with pytest.raises(BadKey) as caught:
        load_key(tmp_path / "keys", "me", None)
    assert caught.value.exit_code == 6
    assert READER.reveal().hex() not in str(caught.value) + repr(caught.value.data)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "-x", "A", "a" * 64, "a\0b", "a\n"])
def test_names_of_keys_are_no_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadReference):
        save_key(tmp_path / "keys", name, READER, None)
    with pytest.raises(BadReference):
        load_key(tmp_path / "keys", name, None)


def test_an_absent_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(NameNotFound):
        load_key(tmp_path, "me", None)


@pytest.mark.parametrize("pq", [False, True])
def test_a_public_key_as_text(pq: bool) -> None:
    public = READER.public(pq=pq)
    assert PublicIdentity.parse(str(public)) == public
    assert public.fingerprint == READER.public().fingerprint
    assert 4 * len(public.fingerprint.replace("-", "")) >= 96
    assert replace(public, ring=OTHER.public().ring).fingerprint != public.fingerprint
    text = str(public)
    for bad in (
        text[:-1],
        text + "a",
        text[:40] + ("a" if text[40] != "a" else "b") + text[41:],
        text.upper(),
        "ckv1",
        "",
    ):
        with pytest.raises(CyberKVError):
            PublicIdentity.parse(bad)


def test_the_keys_of_one_seed_say_nothing_about_each_other() -> None:
    public = READER.public(pq=True)
    assert public.pq is not None
    assert len({public.signing, public.sealing, public.ring[1:], public.pq[:32], READER.reveal()}) == 5
    assert READER.public() != Identity.new().public()
    assert READER.reveal().hex() not in repr(READER)


def test_the_fingerprint_covers_the_part_against_quantum_computers() -> None:
    mine, theirs = READER.public(pq=True), Identity.new().public(pq=True)
    swapped = replace(mine, pq_digest=theirs.pq_digest, pq=theirs.pq)
    assert PublicIdentity.parse(str(swapped)) == swapped
    assert swapped.fingerprint != mine.fingerprint
    with pytest.raises(BadReference):  # a long form that does not agree with itself
        PublicIdentity.parse(str(replace(mine, pq=theirs.pq)))
