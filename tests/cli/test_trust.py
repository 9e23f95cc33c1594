"""Signed roots: publishing with a receipt, fetching by it, and going on only from what somebody vouches for."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.access import Identity
from cyberkv.cybergraph.access.receipt import make_receipt
from cyberkv.cybergraph.car import read_car, write_car
from cyberkv.cybergraph.chain import block_cids, load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index, IndexEntry, signed_domain
from cyberkv.cybergraph.nodes import Block, Conversation, Receipt
from cyberkv.cybergraph.prefix import prefix_key
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command

MORE = " And then?"


@pytest.fixture
def car(tmp_path: Path) -> Path:
    return tmp_path / "story.car"


@pytest.fixture
def signed(story: Command, car: Path) -> dict[str, Any]:
    """`story`, published in a file and signed."""
    story("key", "new")
    answer: dict[str, Any] = story.json("publish", "story", "--public", "--yes", "--car", car)
    return answer


def goes_on(command: Command, ref: object = "story") -> dict[str, Any]:
    answer: dict[str, Any] = command.json("prefill", "-", "--from", ref, "--name", "next", stdin=MORE)
    return answer


def untrusted(command: Command, *line: object) -> dict[str, Any]:
    """Say what was refused, and that nothing was recorded."""
    before = command.json("stats")
    error = command.error(5, *line)
    assert error["kind"] == "untrusted"
    assert command.json("stats") == before
    return error


def test_a_home_with_a_key_signs_what_it_publishes(story: Command, car: Path, tmp_path: Path) -> None:
    plain = story.json("publish", "story", "--public", "--yes", "--car", car)
    assert (plain["receipt"], plain["signed_by"]) == (None, None)
    public = story.json("key", "new")["public"]
    signed = story.json("publish", "story", "--public", "--yes", "--car", tmp_path / "signed.car")
    assert signed["root"] == plain["root"]
    assert signed["blocks"] == plain["blocks"] + 1
    assert signed["plan"]["items"][0]["cid"] == signed["receipt"]
    again = story.json("publish", "story", "--public", "--yes", "--car", tmp_path / "signed.car")
    assert again["receipt"] == signed["receipt"]
    unsigned = story.json("publish", "story", "--public", "--yes", "--no-sign", "--car", car)
    assert unsigned["receipt"] is None
    node = story.json("show", signed["receipt"])["node"]
    assert node["type"] == "cyberkv/receipt"
    assert (node["root"], node["producer"]) == (signed["root"], signed["signed_by"])
    assert node["code"].startswith("cyberkv ")
    assert story.json("trust", "add", public)["key"] == signed["signed_by"]


def test_signing_where_there_is_no_key_makes_one_and_a_dry_run_does_not(story: Command) -> None:
    assert story.json("publish", "story", "--sign", "--dry-run")["receipt"] is None
    assert "no terminal" in story.error(5, "publish", "story", "--public", "--sign")["message"]
    assert story.json("key", "list")["keys"] == []
    shown = [story("publish", "story", "--public", "--sign", *dry, ok=False) for dry in ((), (), ("--dry-run",))]
    pages = {(page.stdout + page.stderr).partition("  title")[0] for page in shown}
    assert len(pages) == 1  # a key that is made, and not kept, would be another each time
    assert "signed by a new key, me: this home has none" in pages.pop()
    result = story("--json", "publish", "story", "--public", "--sign", "--yes")
    assert [each["name"] for each in story.json("key", "list")["keys"]] == ["me"]
    assert result.json["receipt"]
    assert "made the key me" in result.stderr
    assert result.json["signed_by"] in result.stderr  # shown before it is asked
    page = story("publish", "story", "--public", "--yes").stdout
    assert result.json["signed_by"] in page
    assert f"cyberkv fetch {result.json['receipt']} --from URL" in page
    assert story.json("stats")["published"] == 1  # with its receipt it is one conversation still
    assert story("fsck").exit_code == 0
    shown = story.json("publish", "story", "--dry-run")
    assert shown["receipt"] == result.json["receipt"]


def test_a_trusted_signer_is_gone_on_from(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    fetched = elsewhere("--json", "fetch", signed["receipt"], "--from", car)
    assert fetched.json["root"] == signed["root"]
    assert fetched.json["receipt"] == signed["receipt"]
    signer = {"key": signed["signed_by"], "label": None, "trusted": False}
    assert (fetched.json["signed_by"], fetched.json["usable"]) == ([signer], False)
    assert "to look at" in fetched.stderr
    error = untrusted(elsewhere, "run", MORE, "--from", "story")
    assert error["signers"] == [signed["signed_by"]]
    assert "trust add" in error["hint"]
    elsewhere("trust", "add", story.json("key", "show")["public"], "--label", "the keeper")
    assert goes_on(elsewhere)["tokens_reused"] == 85
    again = elsewhere("--json", "fetch", signed["receipt"])
    assert (again.json["usable"], again.json["signed_by"][0]["label"]) == (True, "the keeper")
    assert "to look at" not in again.stderr
    assert "the keeper" in elsewhere("fetch", signed["receipt"]).stdout
    assert goes_on(elsewhere, signed["receipt"])["tokens_reused"] == 85
    assert len(elsewhere("--json", "walk", signed["receipt"]).lines) == 5
    elsewhere("trust", "remove", "the keeper")
    untrusted(elsewhere, "chat", "story")
    untrusted(elsewhere, "run", MORE, "--from", "next")  # it stands on what nobody vouches for any more


def test_what_is_inspect_only_can_be_looked_at(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["root"], "--from", car)  # by its root, so that nobody is known to have signed
    assert elsewhere.json("verify", "story")["failed"] == []
    assert elsewhere.json("show", "story")["node"]["length"] == 85
    assert len(elsewhere("--json", "walk", "story").lines) == 5
    assert elsewhere.json("find", "lighthouse")["matches"]
    assert elsewhere.json("diff", "story", signed["root"])["common_tokens"] == 85
    assert elsewhere.json("fork", "story", "--at", 40, "--name", "cut")["shared_blocks"] == 2
    error = untrusted(elsewhere, "run", MORE, "--from", "story")
    assert error["signers"] == []
    assert "nobody signed" in error["message"]
    untrusted(elsewhere, "run", MORE, "--from", "cut")  # a fork of it stands on the same blocks
    untrusted(elsewhere, "run", MORE, "--from", signed["root"])


def test_unsigned_is_accepted_for_one_conversation(story: Command, elsewhere: Command, tmp_path: Path) -> None:
    story("prefill", "-", "--name", "other", stdin="Another text altogether, long enough for a block or two.")
    roots = {}
    for name in ("story", "other"):
        roots[name] = story.json("publish", name, "--public", "--yes", "--car", tmp_path / name)["root"]
    assert elsewhere.json("fetch", roots["story"], "--from", tmp_path / "story", "--trust", "unsigned")["usable"]
    assert not elsewhere.json("fetch", roots["other"], "--from", tmp_path / "other")["usable"]
    assert goes_on(elsewhere)["tokens_reused"] == 85
    untrusted(elsewhere, "run", MORE, "--from", "other")
    elsewhere("fork", "story", "--at", 40, "--name", "cut")
    assert elsewhere.json("prefill", "-", "--from", "cut", "--name", "cut-on", stdin=MORE)["tokens_reused"] >= 32
    assert elsewhere.json("fetch", "other", "--trust", "unsigned")["usable"]  # nothing moves any more
    assert elsewhere.json("prefill", "-", "--from", "other", stdin=MORE)["tokens_reused"]


def test_a_key_given_with_the_fetch_is_trusted_from_then_on(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    stranger = Command(tmp_path / "stranger").json("key", "new")["public"]
    assert not elsewhere.json("fetch", signed["receipt"], "--from", car, "--trust", stranger)["usable"]
    untrusted(elsewhere, "run", MORE, "--from", "story")
    assert elsewhere.json("fetch", signed["receipt"], "--trust", signed["signed_by"])["usable"]
    assert [each["key"] for each in elsewhere.json("trust", "list")["signers"]][1:] == [signed["signed_by"]]
    assert goes_on(elsewhere)["tokens_reused"] == 85
    assert elsewhere.error(2, "fetch", signed["receipt"], "--trust", "nonsense")["kind"] == "bad-reference"


def test_what_was_recorded_here_needs_nobodys_word(story: Command, car: Path, signed: dict[str, Any]) -> None:
    fetched = story.json("fetch", signed["receipt"], "--from", car)
    assert fetched["usable"]
    assert goes_on(story)["tokens_reused"] == 85
    assert not (story.home / "trust").exists()
    story("index", "rebuild")
    assert goes_on(story)["tokens_reused"]


def test_what_was_computed_here_too_needs_nobodys_word(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["root"], "--from", car)
    elsewhere("prefill", "-", "--name", "mine", stdin=STORY)
    assert goes_on(elsewhere, "mine")["tokens_reused"] == 85
    elsewhere("fork", "story", "--at", 80, "--name", "cut")
    assert goes_on(elsewhere, "cut")["tokens_reused"] == 80


def test_blocks_of_a_trusted_signer_serve_other_prompts(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["receipt"], "--from", car)
    assert elsewhere.json("prefill", "-", "--name", "before", stdin=STORY[:70])["tokens_reused"] == 0
    elsewhere("trust", "add", signed["signed_by"])
    assert elsewhere.json("prefill", "-", "--name", "after", stdin=STORY + MORE)["tokens_reused"] >= 64


def test_why_says_that_a_block_was_fetched_and_nobody_vouches(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text(STORY)
    elsewhere("fetch", signed["receipt"], "--from", car)
    first, second = elsewhere.json("why", tmp_path / "text")["verdicts"][:2]
    assert first["verdict"] == "REFUSE"
    assert "nobody signed it whom this home trusts" in first["reason"]
    assert second["verdict"] == "RECOMPUTE"
    elsewhere("trust", "add", signed["signed_by"])
    assert elsewhere.json("why", tmp_path / "text")["hits"] == 5


def test_level_receipt_says_who_claims_what(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    for ref in ("story", signed["root"], signed["receipt"]):
        found = story.json("verify", ref, "--level", "receipt")
        assert (found["root"], found["failed"], found["checked"]) == (signed["root"], [], 1)
    [receipt] = found["receipts"]
    assert receipt["producer"] == signed["signed_by"]
    assert receipt["model"] == story.json("show", "story")["node"]["model"]
    assert receipt["domain"]
    assert receipt["prev"] is None
    page = story("verify", "story", "--level", "receipt").stdout
    assert "signed execution receipt" in page
    assert "not that it is right" in page
    elsewhere("fetch", signed["root"], "--from", car)
    assert elsewhere.error(3, "verify", "story", "--level", "receipt")["kind"] == "not-found"
    elsewhere("fetch", signed["receipt"], "--from", car)
    assert elsewhere.json("verify", "story", "--level", "receipt")["receipts"][0]["trusted"] is False


def test_a_forged_receipt_is_refused_before_anything_moves(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    with car.open("rb") as file:
        blocks = list(read_car(file))
    genuine = Receipt.decode(blocks[0][1])
    other = Identity(bytes(32)).public().signing
    for changed, kind in (
        (replace(genuine, producer=other), "bad-signature"),
        (replace(genuine, domain="elsewhere"), "bad-signature"),
        (replace(genuine, signature=bytes(64)), "bad-signature"),
        (replace(genuine, producer=bytes([1, *bytes(31)]), signature=bytes([1, *bytes(63)])), "bad-key"),
    ):
        forged = tmp_path / "forged.car"
        with forged.open("wb") as file:
            write_car(file, [changed.cid()], [(changed.cid(), changed.encode()), *blocks[1:]])
        code = 6 if kind == "bad-key" else 4
        assert elsewhere.error(code, "fetch", changed.cid(), "--from", forged)["kind"] == kind
    assert elsewhere.json("list")["conversations"] == []
    assert elsewhere.json("stats")["published"] == 0
    assert not (elsewhere.home / "trust").exists()
    elsewhere("fetch", signed["receipt"], "--from", car)


def test_a_genuine_receipt_of_another_model_is_refused(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    with car.open("rb") as file:
        blocks = dict(read_car(file))
    root = Conversation.decode(blocks[Cid.parse(signed["root"])])
    liar = Identity(bytes(32))
    receipt = make_receipt(liar, replace(root, model=Cid.of(b"other", "dag-cbor", "sha2-256")), "cyberkv", None)
    receipt = replace(receipt, root=root.cid())
    receipt = replace(receipt, signature=liar.signing.sign(receipt.body()))
    lying = tmp_path / "lying.car"
    with lying.open("wb") as file:
        write_car(file, [receipt.cid()], [(receipt.cid(), receipt.encode()), *blocks.items()])
    error = elsewhere.error(4, "fetch", receipt.cid(), "--from", lying)
    assert (error["kind"], error["field"]) == ("malformed-node", "model")
    assert elsewhere.json("list")["conversations"] == []


def test_signers_who_contradict_each_other_are_shown_and_not_used(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    elsewhere("fetch", signed["receipt"], "--from", car, "--trust", signed["signed_by"])
    rival = Identity(bytes(32)).public().signing
    with DiskStore(elsewhere.home / "store") as store, Index(elsewhere.home / "index") as index:
        first, second, *_ = block_cids(store, load_root(store, Cid.parse(signed["root"])))
        entry = _entry_like(store, index, second, first, rival)
        index.add_blocks([entry])
    elsewhere("trust", "add", rival.hex())
    keys = sorted([rival.hex(), signed["signed_by"]])
    error = untrusted(elsewhere, "run", MORE, "--from", "story")
    assert (error["signers"], error["cid"]) == (keys, str(second))
    (tmp_path / "text").write_text(STORY)
    asked = elsewhere.json("why", tmp_path / "text")
    assert asked["hits"] == 1
    assert all(key in asked["reason"] for key in keys)
    verified = elsewhere.json("verify", "story")
    assert verified["disputed"] == [{"cid": str(second), "signers": keys}]
    assert "contradict" in elsewhere("verify", "story").stdout
    assert elsewhere.json("prefill", tmp_path / "text", "--name", "mine")["tokens_reused"] == 16
    elsewhere("trust", "remove", rival.hex())
    assert goes_on(elsewhere)["tokens_reused"] == 85
    assert elsewhere.json("verify", "story")["disputed"] == []


def _entry_like(store: DiskStore, index: Index, block: Cid, prev: Cid, signer: bytes) -> IndexEntry:
    before, node = Block.decode(store.get(prev)), Block.decode(store.get(block))
    key = prefix_key(node.model, prefix_key(before.model, None, before.tokens), node.tokens)
    return IndexEntry(key, Cid.of(b"rival", "dag-cbor", "sha2-256"), prev, node.model, signed_domain(signer))


def test_the_issuer_of_a_grant_is_its_signer_and_a_link_is_trust(
    story: Command, car: Path, first_home: Path, tmp_path: Path
) -> None:
    reader, friend = (Command(shutil.copytree(first_home, tmp_path / name)) for name in ("reader", "friend"))
    key = reader.json("key", "new")["public"]
    sealed = story.json("publish", "story", "--to", key, "--link", "--car", car)
    fetched = reader.json("fetch", sealed["root"], "--from", car)
    assert fetched["signed_by"][0]["key"] == fetched["sealed"]["issuer"]
    assert not fetched["usable"]
    untrusted(reader, "run", MORE, "--from", "story")
    reader("trust", "add", story.json("key", "show")["public"])
    assert goes_on(reader)["tokens_reused"] == 85
    assert friend.json("fetch", sealed["link"], "--from", car)["usable"]
    assert goes_on(friend)["tokens_reused"] == 85


def test_a_receipt_stays_as_long_as_what_it_signs(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["receipt"], "--from", car)
    elsewhere("gc")
    assert elsewhere.json("show", signed["receipt"])["bytes"]
    elsewhere("forget", "story")
    elsewhere("gc")
    assert elsewhere.error(3, "show", signed["receipt"])["kind"] == "block-not-found"
    assert elsewhere.error(3, "show", signed["root"])["kind"] == "block-not-found"
    assert elsewhere("fsck").exit_code == 0


def test_signers_are_added_listed_and_removed(cyberkv: Command, tmp_path: Path) -> None:
    public = Command(tmp_path / "other").json("key", "new")["public"]
    assert cyberkv.json("trust", "list")["signers"] == []
    added = cyberkv.json("trust", "add", public, "--label", "friend")
    assert added["new"]
    assert not cyberkv.json("trust", "add", added["key"], "--label", "old friend")["new"]
    assert cyberkv.json("trust", "list")["signers"] == [{"key": added["key"], "label": "old friend"}]
    assert (cyberkv.home / "trust" / "signers").stat().st_mode & 0o777 == 0o600
    assert cyberkv.error(6, "trust", "add", "00" * 32)["kind"] == "bad-key"
    assert cyberkv.error(2, "trust", "add", "nobody")["kind"] == "bad-reference"
    assert cyberkv.error(3, "trust", "remove", "nobody")["kind"] == "name-not-found"
    assert cyberkv.json("trust", "remove", public)["key"] == added["key"]
    assert cyberkv.json("trust", "list")["signers"] == []
    (cyberkv.home / "trust" / "signers").write_bytes(b"nonsense")
    assert "damaged" in cyberkv.error(4, "trust", "list")["message"]
    assert cyberkv.json("list")["conversations"] == []  # what asks nobody's word goes on


def test_nobody_signs_what_they_would_not_go_on_from(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    key = elsewhere.json("key", "new")["public"]
    elsewhere("fetch", signed["receipt"], "--from", car)
    passed_on = elsewhere("--json", "publish", "story", "--public", "--yes")
    assert (passed_on.json["receipt"], passed_on.json["published"]) == (None, True)
    assert "not signed" in passed_on.stderr
    untrusted(elsewhere, "publish", "story", "--public", "--yes", "--sign")
    untrusted(elsewhere, "publish", "story", "--to", key)
    elsewhere("trust", "add", signed["signed_by"])
    receipt = elsewhere.json("publish", "story", "--public", "--yes")["receipt"]
    assert elsewhere.json("show", receipt)["node"]["domain"] is None  # vouched for, not computed here
    both = elsewhere.json("verify", "story", "--level", "receipt")
    assert len({each["producer"] for each in both["receipts"]}) == 2


def test_a_conversation_fetched_before_there_was_trust_is_to_be_looked_at(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any]
) -> None:
    elsewhere("fetch", signed["root"], "--from", car, "--trust", "unsigned")
    shutil.rmtree(elsewhere.home / "trust")  # what an earlier version left: the place it came from, and no more
    untrusted(elsewhere, "run", MORE, "--from", "story")
    elsewhere("fork", "story", "--at", 40, "--name", "cut")
    untrusted(elsewhere, "run", MORE, "--from", "cut")
    assert elsewhere.json("fetch", "story", "--trust", "unsigned")["usable"]
    assert goes_on(elsewhere)["tokens_reused"] == 85


def test_a_lost_index_does_not_make_ones_own_conversations_foreign(story: Command) -> None:
    shutil.rmtree(story.home / "index")
    story("index", "rebuild")
    assert goes_on(story)["tokens_reused"] == 80 + 5


def test_a_fetch_that_failed_on_the_way_leaves_nothing_to_go_on_from(
    story: Command, elsewhere: Command, car: Path, signed: dict[str, Any], tmp_path: Path
) -> None:
    data = car.read_bytes()
    short = tmp_path / "short.car"
    short.write_bytes(data[: len(data) * 2 // 3])
    assert elsewhere("fetch", signed["receipt"], "--from", short, ok=False).exit_code in (3, 4)
    assert elsewhere.error(3, "run", MORE, "--from", signed["root"])["kind"] == "block-not-found"
    assert not elsewhere.json("fetch", signed["root"], "--from", car)["usable"]
    untrusted(elsewhere, "run", MORE, "--from", "story")
