"""The door before sealed content, over sockets: who proves access gets everything, and nobody else learns anything."""

import http.client
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from cyberkv.cybergraph.access import make_grant
from cyberkv.cybergraph.access.proof import (
    LIFETIME_S,
    SCHEMES,
    Challenge,
    Reader,
    Terms,
    answer,
    make_ring,
)
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import build_app, patience
from cyberkv.cybergraph.gateway import withheld as withheld_module
from cyberkv.cybergraph.gateway.door import MOST_ASKED_BYTES, MOST_PROOF_BYTES, Door
from cyberkv.cybergraph.gateway.front import guarded
from cyberkv.cybergraph.gateway.metrics import CountedContent, Metrics
from cyberkv.cybergraph.gateway.pages import Pages
from cyberkv.cybergraph.gateway.passes import LIFE_S, Passes
from cyberkv.cybergraph.gateway.withheld import Withheld
from cyberkv.cybergraph.nodes import PinSet, Ring
from cyberkv.cybergraph.peers.proving import ASK_AT, PROVE_AT, WANTS
from tests.contracts.peer import ABSENT
from tests.wire.asking import BROWSER, Ask, asking
from tests.wire.conftest import running
from tests.wire.proving_by_hand import KEY, Post, audience, bearer, car_cids, challenge, posting, token
from tests.wire.sealed_home import MORE, OTHER, READER, Home, SealedTalk, guarding

RING = "ring-or/secp256k1/1"


@pytest.fixture
def home(talk: SealedTalk) -> Home:
    return talk.home


@pytest.fixture
def door(home: Home, talk: SealedTalk) -> Iterator[Door]:
    with guarding(home) as (_, made, _):
        yield made


@pytest.fixture
def ask(door: Door) -> Ask:
    return asking(door.audience)


@pytest.fixture
def post(door: Door) -> Post:
    return posting(door.audience)


def some(cids: Iterable[Cid]) -> list[Cid]:
    """Every node, and leaves from all over: a request for each of them would take most of the time here."""
    each = sorted(cids)
    return [cid for number, cid in enumerate(each) if cid.codec != "raw" or number % 8 == 0]


def test_without_a_door_a_stranger_gets_all_ciphertext(home: Home, talk: SealedTalk) -> None:
    with running(build_app(home.content())) as served:
        ask = asking(served.url)
        assert {ask(f"/ipfs/{cid}?format=raw").status for cid in some(talk.withheld())} == {200}
        assert set(car_cids(ask(f"/ipfs/{talk.root}?format=car"))) == {*talk.report.cids}
        assert posting(served.url)(ASK_AT, root=str(talk.root), scheme=KEY).status == 404


def test_a_stranger_gets_root_and_grant_and_nothing_else(home: Home, talk: SealedTalk, ask: Ask) -> None:
    assert len(talk.withheld()) > 540
    sealed = talk.sealed
    for cid in (talk.root, talk.report.grant):
        assert ask(f"/ipfs/{cid}?format=raw").body == home.store.get(cid)
    assert car_cids(ask(f"/ipfs/{talk.root}?format=car")) == [talk.root, talk.report.grant]
    for cid in (sealed.manifest, sealed.pinset):
        got = ask(f"/ipfs/{cid}?format=raw")
        assert (got.status, got.headers["cache-control"]) == (401, "no-store")
        assert got.headers["www-authenticate"] == f'{WANTS} challenge="{ASK_AT}"'
    assert ask(f"/ipfs/{talk.root}/pinset/links/0").status == 401
    assert ask(f"/ipfs/{talk.root}/manifest?format=car").status == 401


def test_what_is_sealed_cannot_be_told_from_what_nobody_has(talk: SealedTalk, ask: Ask) -> None:
    sealed = talk.sealed
    hidden = talk.withheld() - {sealed.manifest, sealed.pinset}
    leaf = next(cid for cid in hidden if cid.codec == "raw")
    pins = next(cid for cid in hidden if cid.codec == "dag-cbor")
    for cid in (leaf, pins):
        for form in ("?format=raw", "?format=car", "?format=car&dag-scope=block", "", "?format=dag-json", "/links/0"):
            for options in ({}, {"method": "HEAD"}, {"if_none_match": "*"}, {"cache_control": "only-if-cached"},
                            {"range": "bytes=0-9"}, {"accept": BROWSER}, bearer("made-up-by-a-stranger"),
                            {"authorization": "Basic YTpi"}):  # fmt: skip
                secret, nothing = (ask(f"/ipfs/{each}{form}", **options) for each in (cid, ABSENT))
                assert secret.status == nothing.status
                assert secret.status in (404, 412) or "authorization" in options
                assert secret.headers == nothing.headers
                assert secret.body.replace(str(cid).encode(), b"") == nothing.body.replace(str(ABSENT).encode(), b"")
    assert ask(f"/ipfs/{leaf}?format=raw", **bearer("made-up-by-a-stranger")).status == 401
    assert {ask(f"/ipfs/{cid}?format=raw").status for cid in some(hidden)} == {404}


def test_who_proves_access_gets_everything_and_no_shared_cache_keeps_it(
    home: Home, talk: SealedTalk, ask: Ask, post: Post
) -> None:
    got = token(post, talk)
    for cid in list(talk.withheld())[:50]:
        given = ask(f"/ipfs/{cid}?format=raw", **bearer(got))
        assert given.body == home.store.get(cid)
        assert given.headers["cache-control"].startswith("private")
        assert "Authorization" in given.headers["vary"]
    assert set(car_cids(ask(f"/ipfs/{talk.root}?format=car", **bearer(got)))) == {*talk.report.cids}
    assert set(car_cids(ask(f"/ipfs/{talk.sealed.pinset}?format=car", **bearer(got)))) == talk.withheld()
    assert len(car_cids(ask(f"/ipfs/{talk.root}?format=car"))) == 2


def test_what_is_public_is_served_as_ever(home: Home, talk: SealedTalk, ask: Ask) -> None:
    public = home.show("public")
    with running(build_app(home.content())) as open_house:
        for cid in closure(home.store, public):
            for form in ("?format=raw", "?format=car"):
                for options in ({}, bearer("not-a-token"), {"method": "HEAD"}):
                    mine, theirs = (each(f"/ipfs/{cid}{form}", **options) for each in (ask, asking(open_house.url)))
                    assert (mine.status, mine.body) == (theirs.status, theirs.body)
                    assert mine.headers | {"vary": ""} == theirs.headers | {"vary": ""}
    assert ask(f"/ipfs/{public}?format=raw").headers["cache-control"].startswith("public")


def test_a_token_is_for_one_root_and_what_it_shares_with_others(
    home: Home, talk: SealedTalk, ask: Ask, post: Post
) -> None:
    other, longer = home.seal("b"), home.publish(talk.plain, talk.lineage)
    assert longer.root != talk.root
    got = token(post, talk)
    for cid in other.withheld():
        expected = 401 if cid in (other.sealed.manifest, other.sealed.pinset) else 404
        assert ask(f"/ipfs/{cid}?format=raw", **bearer(got)).status == expected
    assert len(car_cids(ask(f"/ipfs/{other.root}?format=car", **bearer(got)))) == 2
    assert {ask(f"/ipfs/{cid}?format=raw", **bearer(got)).status for cid in some(longer.withheld())} == {200}


def test_a_token_ends(home: Home, talk: SealedTalk, ask: Ask, post: Post) -> None:
    got = token(post, talk)
    leaf = next(cid for cid in talk.withheld() if cid.codec == "raw")
    home.clock.now_s += LIFE_S - 1
    assert ask(f"/ipfs/{leaf}?format=raw", **bearer(got)).status == 200
    home.clock.now_s += 1
    late = ask(f"/ipfs/{leaf}?format=raw", **bearer(got))
    assert (late.status, late.headers["www-authenticate"].startswith(WANTS)) == (401, True)
    assert ask(f"/ipfs/{ABSENT}?format=raw", **bearer(got)).status == 401


def test_tokens_do_not_pile_up() -> None:
    passes = Passes(most=3)
    root = Cid.of(b"", "dag-cbor", "sha2-256")
    first, *rest = (passes.give(root, 0) for _ in range(4))
    assert [passes.root(each, 1) for each in (first, *rest)] == [None, root, root, root]
    assert len(passes) == 3
    passes.give(root, LIFE_S)
    assert len(passes) == 1
    assert all(len(each) == 43 for each in rest)


def test_each_answer_is_taken_once(talk: SealedTalk, post: Post) -> None:
    data = challenge(post, talk)
    proof = talk.prover().answer(data, audience(data))
    codes = [post(PROVE_AT, challenge=data, proof=proof).status for _ in range(2)]
    assert codes == [200, 403]
    data = challenge(post, talk)
    proof = talk.prover().answer(data, audience(data))
    codes = [post(PROVE_AT, challenge=data, proof=each).status for each in (bytes(64), proof)]
    assert codes == [403, 403]  # spent by the wrong answer


@pytest.mark.parametrize("change", ["audience", "expired", "nonce", "expires_s", "grant", "root", "wrong"])
def test_answers_to_something_else_are_refused(
    home: Home, talk: SealedTalk, door: Door, post: Post, change: str
) -> None:
    data = challenge(post, talk)
    prover = talk.prover()
    asked = Challenge.decode(data)
    if change == "expired":
        proof = prover.answer(data, door.audience)
        home.clock.now_s += LIFETIME_S
    else:
        leaf = next(cid for cid in talk.withheld() if cid.codec == "raw" and cid != asked.root)
        changes: dict[str, Any] = {
            "audience": "http://elsewhere.example", "nonce": bytes(32), "expires_s": asked.expires_s + 60,
            "grant": Cid.of(b"another", "dag-cbor", "sha2-256"), "root": leaf,
        }  # fmt: skip
        changed = {change: changes[change]} if change in changes else {}
        data = replace(asked, **changed).encode()
        terms = replace(prover.terms, grant=Challenge.decode(data).grant, root=Challenge.decode(data).root)
        proof = answer(data, terms, {KEY: prover.secret}, audience=audience(data), now_s=home.clock())
        if change == "wrong":
            proof = bytes([proof[0] ^ 1]) + proof[1:]
    got = post(PROVE_AT, challenge=data, proof=proof)
    assert got.status == (404 if change == "grant" else 403), got.body


@pytest.mark.parametrize("scheme", ["member-sig/ed25519/1", "stark/1", "", "none", RING])
def test_no_other_scheme_is_taken(talk: SealedTalk, post: Post, scheme: str) -> None:
    assert post(ASK_AT, root=str(talk.root), scheme=scheme).status == 403
    assert (scheme in SCHEMES) == (scheme.startswith(("member", "ring")))


def test_a_reader_of_an_earlier_epoch_proves_nothing_about_a_later(home: Home, talk: SealedTalk, post: Post) -> None:
    later = talk.rotated()
    assert later.sealed.epoch == 2
    data = challenge(post, later)
    old = talk.prover()
    proof = old.answer(
        replace(Challenge.decode(data), grant=talk.report.grant, root=talk.sealed.manifest).encode(), audience(data)
    )
    assert post(PROVE_AT, challenge=data, proof=proof).status == 403
    assert token(post, later)


def test_one_of_a_ring_proves_it_and_one_of_another_ring_does_not(home: Home, door: Door, post: Post) -> None:
    talk = home.seal("ring", readers=[READER, *MORE], ring=True)
    assert talk.report.ring is not None
    assert asking(door.audience)(f"/ipfs/{talk.report.ring}?format=raw").status == 200
    ring = make_ring([each.public().ring for each in (READER, *MORE)])
    data = challenge(post, talk, RING)
    own = Terms(talk.report.grant, talk.sealed.manifest, talk.grant.access, ring.cid(), ring)
    secret = READER.ring_scalar.to_bytes(32, "big")
    proof = answer(data, own, {RING: secret}, audience=audience(data), now_s=home.clock())
    assert post(PROVE_AT, challenge=data, proof=proof).status == 403
    mine = Reader.of_ring(talk.root, talk.grant, published_ring(talk), READER, home.clock)
    data = challenge(post, talk, RING)
    assert post(PROVE_AT, challenge=data, proof=mine.answer(data, audience(data))).status == 200


def published_ring(talk: SealedTalk) -> Ring:
    assert talk.report.ring is not None
    return Ring.decode(talk.home.store.get(talk.report.ring))


def test_what_is_published_or_withdrawn_meanwhile(home: Home, talk: SealedTalk, ask: Ask, post: Post) -> None:
    later = home.seal("later")
    leaf = next(cid for cid in later.withheld() if cid.codec == "raw" and cid != later.sealed.manifest)
    assert ask(f"/ipfs/{leaf}?format=raw").status == 404
    got = token(post, later)
    assert ask(f"/ipfs/{leaf}?format=raw", **bearer(got)).status == 200
    home.index.withdraw(later.root, later.report.cids)
    assert ask(f"/ipfs/{leaf}?format=raw", **bearer(got)).status == 404
    assert post(ASK_AT, root=str(later.root), scheme=KEY).status == 404


@pytest.mark.parametrize("lost", ["root", "grant", "pinset"])
def test_leaves_whose_root_or_pin_set_is_lost_are_still_kept_back(home: Home, talk: SealedTalk, lost: str) -> None:
    cid = {"root": talk.root, "grant": talk.report.grant, "pinset": talk.sealed.pinset}[lost]
    node = home.store.get(cid)
    manifest = talk.sealed.manifest
    home.store.delete_many([cid])
    with guarding(home) as (served, _, _):
        ask, post = asking(served.url), posting(served.url)
        raw = [each for each in talk.withheld() if each.codec == "raw" and each != manifest][:40]
        assert {ask(f"/ipfs/{each}?format=raw").status for each in raw} == {404}
        home.store.put_many([(cid, node)])
        assert set(car_cids(ask(f"/ipfs/{talk.root}?format=car"))) == {talk.root, talk.report.grant}
        got = token(post, talk)
        assert {ask(f"/ipfs/{each}?format=raw", **bearer(got)).status for each in raw} == {200}


def test_a_pin_set_that_claims_what_another_sealed_opens_nothing_of_it(
    home: Home, talk: SealedTalk, ask: Ask, post: Post
) -> None:
    """Pin sets are not signed: somebody whose file is served, too, could list the leaves of others."""
    leaf = next(cid for cid in talk.withheld() if cid.codec == "raw" and cid != talk.sealed.manifest)
    own, false = (claiming(home, *more) for more in ((), (leaf,)))
    for claim in (own, false):
        home.index.publish(claim.root, [claim.root, claim.report.grant, claim.sealed.manifest, claim.sealed.pinset])
        got = token(post, claim)
        assert ask(f"/ipfs/{claim.sealed.manifest}?format=raw", **bearer(got)).status == 200
        assert ask(f"/ipfs/{leaf}?format=raw", **bearer(got)).status == 404
    others = [cid for cid in talk.withheld() if cid != leaf][:20]
    got = token(post, talk)
    assert {ask(f"/ipfs/{cid}?format=raw", **bearer(got)).status for cid in others} == {200}


def claiming(home: Home, *more: Cid) -> SealedTalk:
    """Make a sealed root by hand, of another issuer, whose pin set also lists `more`."""
    made = home.seal(f"claim {len(more)}", blocks=1)
    home.index.withdraw(made.root, made.report.cids)
    sealed, key = made.sealed, made.lineage.content_key
    grant = make_grant(
        OTHER, key, [READER.public()], lineage=sealed.lineage, epoch=1, root=sealed.manifest, alg=sealed.alg
    )
    pins = home.store.put_node(PinSet(tuple(sorted((sealed.manifest, *more)))))
    commitment = key.commitment(OTHER.public().signing, sealed.lineage, 1)
    root = home.store.put_node(replace(sealed, grant=home.store.put_node(grant), pinset=pins, commitment=commitment))
    return replace(made, report=replace(made.report, root=root, grant=grant.cid()))


def test_a_grant_for_one_is_none_for_another(home: Home, talk: SealedTalk, ask: Ask, post: Post) -> None:
    other = home.seal("other")
    root = home.store.put_node(replace(other.sealed, grant=talk.report.grant))
    home.index.publish(root, [root])
    assert post(ASK_AT, root=str(root), scheme=KEY).status == 404
    assert {post(ASK_AT, root=str(each.root), scheme=KEY).status for each in (talk, other)} == {200}
    got = token(post, talk)
    assert {ask(f"/ipfs/{cid}?format=raw", **bearer(got)).status for cid in other.withheld()} == {401, 404}


def test_a_pin_set_that_is_none_is_not_read_again_and_again(
    home: Home, talk: SealedTalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = replace(talk.sealed, pinset=talk.report.grant)  # a sound node of another kind
    root = home.store.put_node(sealed)
    home.index.publish(root, [root])
    withheld = Withheld(home.content())
    withheld.refresh()
    found = [withheld.find(root) for _ in range(3)]
    assert [each.lacking for each in found if each] == [None] * 3
    monkeypatch.setattr(withheld_module, "read_sealed_root", None)
    assert withheld.find(root) == found[0]


def test_bodies_are_bounded_before_they_are_read(talk: SealedTalk, post: Post) -> None:
    for target, most in ((ASK_AT, MOST_ASKED_BYTES), (PROVE_AT, MOST_PROOF_BYTES)):
        assert post(target, body=b" " * (most + 1)).status == 413
        assert post(target, body=b" " * most).status == 400
        for body in (b"", b"{}", b"[]", b"\xff", b'{"root":1,"scheme":"x"}', b'{"challenge":"x","proof":"y"}',
                     b'{"root": "x","scheme":"x"}', b'{"a":1,"root":"x","scheme":"x"}'):  # fmt: skip
            assert post(target, body=body).status == 400
    assert post(ASK_AT, root="bafy", scheme=KEY).status == 400
    for root in (ABSENT, talk.report.grant, talk.plain):
        assert post(ASK_AT, root=str(root), scheme=KEY).status == 404
    assert post(PROVE_AT, challenge=bytes(2000), proof=b"").status == 413
    assert post(PROVE_AT, challenge=PinSet((ABSENT,)).encode(), proof=b"").status == 400
    assert post(PROVE_AT, challenge=b"", proof=b"").status == 400


def test_a_body_that_does_not_come(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.2)
    with closing(http.client.HTTPConnection(door.audience.removeprefix("http://"), timeout=20)) as connection:
        connection.putrequest("POST", ASK_AT)
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        with pytest.raises(http.client.RemoteDisconnected):
            connection.getresponse()


def test_challenges_do_not_pile_up(home: Home, talk: SealedTalk, door: Door) -> None:
    def issue(count: int) -> int:
        for _ in range(count):
            home.clock.now_s += 1  # each is good for a minute
            door._issue(str(talk.root), KEY, "127.0.0.1")
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = issue(2 * LIFETIME_S)
        grown_bytes = issue(2000) - before
    finally:
        tracemalloc.stop()
    assert door.open_count == LIFETIME_S
    assert grown_bytes < 20 * 2000


def test_neither_pages_nor_metrics_tell(home: Home, talk: SealedTalk) -> None:
    metrics = Metrics()
    content = CountedContent(home.content(), metrics)
    door = Door(content, home.clock)
    with running(guarded(build_app(content, Pages(door.outside), door), content, metrics)) as served:
        door.audience = served.url
        ask, post = asking(served.url), posting(served.url)
        got = token(post, talk)
        sealed = talk.sealed
        assert ask(f"/ipfs/{sealed.pinset}", accept=BROWSER).status == 401
        shown = ask(f"/ipfs/{sealed.pinset}", accept=BROWSER, **bearer(got))
        assert (shown.status, shown.headers["cache-control"].startswith("private")) == (200, True)
        pages = [ask(path, accept=BROWSER).body for path in ("/", f"/ipfs/{talk.root}", f"/ipfs/{talk.report.grant}")]
        told = b"".join([*pages, ask("/metrics").body])
        hidden = talk.withheld() - {sealed.manifest, sealed.pinset}
        for secret in (got, *map(str, hidden)):
            assert secret.encode() not in told
        assert str(talk.root).encode() not in ask("/metrics").body
