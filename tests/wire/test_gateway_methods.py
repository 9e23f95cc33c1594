"""What is sealed, by every method of asking, with and without a proof and with parts lost; and how many challenges."""

import http.client
from contextlib import closing

import pytest

from cyberkv.cybergraph.access.proof import LIFETIME_S, MOST_OPEN_EACH
from cyberkv.cybergraph.chain import closure
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.dagjson import encode
from cyberkv.cybergraph.gateway import withheld as withheld_module
from cyberkv.cybergraph.gateway.withheld import Shown, Withheld
from cyberkv.cybergraph.nodes import PinSet
from cyberkv.cybergraph.peers.proving import ASK_AT
from tests.wire.asking import asking
from tests.wire.proving_by_hand import KEY, bearer, posting, token
from tests.wire.sealed_home import Home, SealedTalk, guarding


@pytest.fixture
def home(talk: SealedTalk) -> Home:
    return talk.home


METHODS: dict[str, dict[str, str]] = {
    "GET": {},
    "HEAD": {"method": "HEAD"},
    "a range": {"range": "bytes=0-1"},
    "HEAD of a range": {"method": "HEAD", "range": "bytes=0-1"},
    "GET if changed": {"if_none_match": "*"},
    "HEAD if changed": {"method": "HEAD", "if_none_match": "*"},
    "only if cached": {"cache_control": "only-if-cached"},
    "HEAD only if cached": {"method": "HEAD", "cache_control": "only-if-cached"},
    "OPTIONS": {"method": "OPTIONS"},
}
FORMS = ("?format=raw", "?format=car&dag-scope=block", "?format=car")
ACCESS = {
    # object: without a proof, with one, with the pin set lost and no proof, with it lost and a proof
    "root": (200, 200, 200, 200),
    "grant": (200, 200, 200, 200),
    "manifest": (401, 200, 401, 200),
    "pinset": (401, 200, 401, 401),
    "inner pin set": (404, 200, 200, 200),  # it lists sealed CIDs and has no key to any
    "page": (404, 200, 404, 404),
    "leaf": (404, 200, 404, 404),
}


@pytest.mark.parametrize("lost", [False, True], ids=["whole", "pin set lost"])
@pytest.mark.parametrize("proven", [False, True], ids=["stranger", "reader"])
def test_every_method_tells_of_a_sealed_object_what_get_does(
    home: Home, talk: SealedTalk, *, proven: bool, lost: bool
) -> None:
    sealed = talk.sealed
    named = {sealed.manifest, sealed.pinset}
    inner = next(cid for cid in PinSet.decode(home.store.get(sealed.pinset)).links if cid.codec == "dag-cbor")
    links = PinSet.decode(home.store.get(inner)).links
    [page] = [cid for cid in links if home.store.get(cid)[:3] == b"CKM"]
    leaf = next(cid for cid in links if home.store.get(cid)[:3] == b"CKB")
    objects = {
        "root": talk.root, "grant": talk.report.grant, "manifest": sealed.manifest, "pinset": sealed.pinset,
        "inner pin set": inner, "page": page, "leaf": leaf,
    }  # fmt: skip
    if lost:
        home.store.delete_many([sealed.pinset])
    with guarding(home) as (served, _, _):
        ask, post = asking(served.url), posting(served.url)
        key = bearer(token(post, talk)) if proven else {}
        for name, cid in objects.items():
            access = ACCESS[name][2 * lost + proven]
            for form in FORMS:
                if form == "?format=car" and name in ("root", "inner pin set") and lost:
                    continue  # a stream that breaks off: what of it is here is sent
                for method, options in METHODS.items():
                    got = ask(f"/ipfs/{cid}{form}", **options, **key)
                    refused = 412 if "cached" in method else access
                    given = 304 if "changed" in method else 206 if method == "a range" and "raw" in form else 200
                    expected = 204 if method == "OPTIONS" else refused if access != 200 else given
                    assert got.status == expected, (name, form, method, got.status)
                    assert access == 200 or home.store.size_bytes(cid) is None or "CKB" not in got.body.decode("latin1")
        assert named <= talk.withheld()


def test_what_looks_sealed_is_read_once_and_forgotten_in_time(
    home: Home, talk: SealedTalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = [cid for cid in closure(home.store, home.show("public")) if cid.codec == "raw"]
    content = home.content()
    withheld = Withheld(content)
    reads: list[Cid] = []
    get = content.get
    monkeypatch.setattr(content, "peek", lambda cid, count: (reads.append(cid), get(cid)[:count])[1])
    monkeypatch.setattr(withheld_module, "MOST_PEEKED", 2)
    shown = Shown(content, withheld, None)
    for _ in range(3):
        assert shown.size_bytes(public[0]) == home.store.size_bytes(public[0])
    assert reads == [public[0]]
    for cid in public:
        assert shown.size_bytes(cid) is not None
    assert len(withheld._peeked) == 2


def test_one_client_gets_no_more_challenges_than_it_may_leave_open(home: Home, talk: SealedTalk) -> None:
    """A proxy on this machine is believed when it says for whom it asks; see `limits`."""
    door = home.door()
    with guarding(home, door) as (served, _, _), closing(_line(served.url)) as line:

        def ask(client: str) -> http.client.HTTPResponse:
            fields = encode({"root": str(talk.root), "scheme": KEY})
            line.request("POST", ASK_AT, fields, {"X-Forwarded-For": client})
            answer = line.getresponse()
            answer.read()
            return answer

        assert {ask("192.0.2.1").status for _ in range(MOST_OPEN_EACH)} == {200}
        home.clock.now_s += 20
        refused = ask("192.0.2.1")
        assert (refused.status, refused.headers["retry-after"]) == (429, str(LIFETIME_S - 20))
        assert door.open_count == MOST_OPEN_EACH
        assert ask("192.0.2.2").status == 200  # the control
        assert {ask("2001:db8::1:0").status for _ in range(MOST_OPEN_EACH)} == {200}
        assert ask("2001:db8::2:0").status == 429  # of the same network of 64 bits
        assert ask("2001:db8:0:1::").status == 200
        assert {ask("127.0.0.1").status for _ in range(MOST_OPEN_EACH + 2)} == {200}  # who does not say for whom
        post = posting(served.url)
        assert token(post, talk)
        home.clock.now_s += LIFETIME_S - 20
        assert ask("192.0.2.1").status == 200


def _line(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
