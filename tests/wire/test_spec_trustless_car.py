"""The trustless gateway specification on CAR answers, as far as they hold raw blocks and nodes: one rule a test."""

import io
from collections.abc import Iterator, Sequence

import pytest

from cyberkv.cybergraph.dagcbor import decode
from cyberkv.cybergraph.foreign import AnyCid, read_cid
from cyberkv.cybergraph.gateway.app import PROBE
from tests.wire.asking import CAR, DAG_CBOR, Answer
from tests.wire.example import ABSENT, INLINE, Example


def sections(body: bytes) -> Iterator[bytes]:
    """Cut a CAR into what stands between its sizes: an independent reading, for CIDs of any form."""
    stream = io.BytesIO(body)
    while byte := stream.read(1):
        size, shift = byte[0] & 127, 7
        while byte[0] > 127:
            byte = stream.read(1)
            size |= (byte[0] & 127) << shift
            shift += 7
        section = stream.read(size)
        assert len(section) == size
        yield section


def blocks(answer: Answer) -> list[AnyCid]:
    """List the blocks of an answer in their order, each checked against its CID."""
    assert answer.status == 200
    _, *rest = sections(answer.body)
    found = []
    for section in rest:
        cid, end = read_cid(section)
        cid.verify(section[end:])
        found.append(cid)
    return found


def named(example: Example, names: Sequence[str]) -> list[AnyCid]:
    return [example.cids[name] for name in names]


# Keys stand in the order of dag-cbor in a dag-cbor block (shorter ones first), in that of dag-json in the other.
BELOW = {
    "dag-cbor": ["dag-cbor", "leaf", "dag-cbor end", "dag-cbor middle", "file"],
    "dag-json": ["dag-json", "leaf", "dag-json end", "file", "dag-json middle"],
}
DAGS = [*BELOW]


@pytest.mark.parametrize("codec", DAGS)
@pytest.mark.parametrize("scope", ["", "&dag-scope=all"])
def test_the_whole_graph_is_the_default(example: Example, codec: str, scope: str) -> None:
    """`dag-scope=all`, the default, gives the entire graph below the end of the path, depth first."""
    assert blocks(example.get(codec, f"?format=car{scope}")) == named(example, BELOW[codec])
    assert example.get(codec, scope.replace("&", "?"), accept=CAR).body == example.get(codec, "?format=car").body


@pytest.mark.parametrize("name", ["dag-cbor", "dag-json", "leaf", "json", "file"])
@pytest.mark.parametrize("scope", ["block", "entity"])
def test_one_block(example: Example, name: str, scope: str) -> None:
    """`block` gives one block, and so does `entity` for whatever is not a file in several blocks."""
    assert blocks(example.get(name, f"?format=car&dag-scope={scope}")) == named(example, [name])


def test_a_scope_that_there_is_not(example: Example) -> None:
    """400 for any other scope."""
    assert example.get("dag-cbor", "?format=car&dag-scope=most").status == 400
    assert example.get("dag-cbor", "?format=raw&dag-scope=most").status == 200  # it says nothing about a block


@pytest.mark.parametrize("codec", DAGS)
@pytest.mark.parametrize(("scope", "below"), [("block", []), ("entity", []), ("all", ["{} end", "leaf"])])
def test_a_path_brings_its_blocks(example: Example, codec: str, scope: str, below: list[str]) -> None:
    """The blocks that are needed to check the path come first, then what the scope says of the block at its end."""
    answer = example.get(codec, f"/foo/link?format=car&dag-scope={scope}")
    assert blocks(answer) == named(example, [codec, f"{codec} middle", *(name.format(codec) for name in below)])


def test_a_path_to_a_raw_block(example: Example) -> None:
    """Nothing that is beside the path comes along."""
    answer = example.get("dag-cbor", "/foo/link/leaf?format=car")
    assert blocks(answer) == named(example, ["dag-cbor", "dag-cbor middle", "leaf"])


@pytest.mark.parametrize("codec", DAGS)
@pytest.mark.parametrize(
    ("path", "status"), [("/nothing", 404), ("/foo/link/nothing", 404), ("/gone", 404), ("/foo", 501)]
)
def test_a_path_that_does_not_exist(example: Example, codec: str, path: str, status: int) -> None:
    """Where that is known before the stream begins, the answer is the error and no part of a CAR."""
    for scope in ("all", "block"):
        answer = example.get(codec, f"{path}?format=car&dag-scope={scope}")
        assert (answer.status, answer.headers["content-type"]) == (status, "text/plain; charset=utf-8")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_root_that_is_missing(example: Example, method: str) -> None:
    """404 for a CAR whose root block is missing; under only-if-cached 412."""
    assert example.ask(f"/ipfs/{ABSENT}?format=car", method).status == 404
    assert example.ask(f"/ipfs/{ABSENT}?format=car", method, cache_control="only-if-cached").status == 412


# The header of the CAR and the parameters of its type.


@pytest.mark.parametrize(
    ("after", "accept", "dups"),
    [("", CAR, "n"), ("", f"{CAR};dups=y", "y"), ("", f"{CAR}; version=1; order=dfs; dups=n", "n"),
     ("?format=car", "", "n"), ("?format=car&car-dups=y", "", "y"), ("?format=car&car-dups=n", f"{CAR};dups=y", "n"),
     ("?format=car&car-order=unk", "", "n"), ("", f"{CAR};order=dfs;dups=y;q=0.5, image/png", "y")],
)  # fmt: skip
def test_the_type_says_all_that_is_known(example: Example, after: str, accept: str, dups: str) -> None:
    """Version, order and dups must be in Content-Type; the version is that of the CAR; the URL wins over Accept."""
    answer = example.get("dag-cbor", after, accept=accept)
    assert answer.headers["content-type"] == f"{CAR}; version=1; order=dfs; dups={dups}"
    header = decode(next(sections(answer.body)))
    assert header == {"version": 1, "roots": [example.cids["dag-cbor"]]}


@pytest.mark.parametrize("codec", DAGS)
def test_blocks_that_are_linked_more_than_once(example: Example, codec: str) -> None:
    """With dups=y a block comes every time, with dups=n once."""
    once, often = (blocks(example.get(codec, f"?format=car&car-dups={dups}")) for dups in "ny")
    assert [once.count(cid) for cid in named(example, BELOW[codec])] == [1] * 5
    counts = {name: often.count(example.cids[name]) for name in BELOW[codec]}
    assert counts == {codec: 1, "leaf": 8, f"{codec} end": 2, f"{codec} middle": 1, "file": 1}


@pytest.mark.parametrize("dups", "ny")
@pytest.mark.parametrize("codec", DAGS)
def test_blocks_that_are_their_own_name(example: Example, codec: str, dups: str) -> None:
    """No block under an identity CID is ever in a CAR."""
    assert str(INLINE).encode() in example.get("dag-json").body  # one is linked
    assert INLINE not in blocks(example.get(codec, f"?format=car&car-dups={dups}"))


@pytest.mark.parametrize(
    ("after", "accept"),
    [("?format=car&car-version=2", ""), ("?format=car&car-order=bfs", ""), ("?format=car&car-dups=x", ""),
     ("", f"{CAR};version=2"), ("", f"{CAR};order=bfs"), ("", f"{CAR};dups=x")],
)  # fmt: skip
def test_parameters_that_are_not_supported(example: Example, after: str, accept: str) -> None:
    """400 or 406 for a variant that is not supported."""
    assert example.get("dag-cbor", after, accept=accept).status == 406


# Bytes of an entity.


@pytest.mark.parametrize("asked", ["0:*", "0:9", "-10:*", "5:-1", "99:99", "50:1000", "-1000:5"])
@pytest.mark.parametrize("name", ["leaf", "dag-cbor"])
def test_bytes_of_an_entity(example: Example, name: str, asked: str) -> None:
    """A raw block is read whole for any part of it; a node has no parts, so the parameter is passed over."""
    answer = example.get(name, f"?format=car&entity-bytes={asked}")
    assert blocks(answer) == named(example, [name])


def test_bytes_outside_of_an_entity(example: Example) -> None:
    """400 for a range that is known to lie outside; a node has no bytes to be outside of."""
    for asked in ("100:*", "100:200", "0:-101"):
        assert example.get("leaf", f"?format=car&entity-bytes={asked}").status == 400
        assert blocks(example.get("dag-cbor", f"?format=car&entity-bytes={asked}")) == named(example, ["dag-cbor"])


@pytest.mark.parametrize("asked", ["1", "a:b", "*:1", "1:2:3", "1.5:*"])
def test_bytes_that_make_no_sense(example: Example, asked: str) -> None:
    """400 for anything but from:to."""
    assert example.get("leaf", f"?format=car&entity-bytes={asked}").status == 400


# What caches and browsers are told.


def test_tags(example: Example) -> None:
    """Every scope, range of bytes and order of duplicates has an Etag of its own, and each is obeyed."""
    forms = [
        "",
        "&dag-scope=block",
        "&car-dups=y",
        "&entity-bytes=0:1",
        "&entity-bytes=0:2",
        "&dag-scope=block&car-dups=y",
    ]
    tags = [example.get("leaf", f"?format=car{form}").headers["etag"] for form in forms]
    assert len({*tags}) == len(forms)
    assert all(tag.startswith('W/"') and str(example.cids["leaf"]) in tag for tag in tags)
    for form, tag in zip(forms, tags, strict=True):
        assert example.get("leaf", f"?format=car{form}", if_none_match=tag).status == 304
        assert example.get("leaf", f"?format=car{form}", if_none_match=tags[forms.index(form) - 1]).status == 200
    by_path = example.get("dag-cbor", "/again?format=car").headers["etag"]
    assert by_path not in tags


def test_disposition_and_headers(example: Example) -> None:
    """A CAR is an attachment, `<cid>.car` unless named; its type is not to be guessed at, and it has no ranges."""
    headers = example.get("dag-cbor", "?format=car").headers
    assert headers["content-disposition"] == f'attachment; filename="{example.cids["dag-cbor"]}.car"'
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["accept-ranges"] == "none"
    assert example.get("dag-cbor", "?format=car", range="bytes=0-1").status == 200
    got = example.get("dag-cbor", "?format=car&filename=a.car").headers["content-disposition"]
    assert got == 'attachment; filename="a.car"'


def test_location(example: Example) -> None:
    """Content-Location names the URL with all parameters where Accept had a say in them."""
    answer = example.get("dag-cbor", "/foo/link", accept=f"{CAR};dups=y")
    where = f"/ipfs/{example.cids['dag-cbor']}/foo/link?format=car&dag-scope=all&car-dups=y"
    assert answer.headers["content-location"] == where
    assert example.ask(where).body == answer.body
    answer = example.get("dag-cbor", "?format=car&entity-bytes=0:5", accept=DAG_CBOR)
    assert answer.headers["content-location"].endswith("?format=car&dag-scope=block&car-dups=n&entity-bytes=0:5")
    assert "content-location" not in example.get("dag-cbor", "?format=car").headers


@pytest.mark.parametrize("after", ["?format=car", "?format=car&dag-scope=block", "/foo/link?format=car"])
def test_head_is_get_without_a_payload(example: Example, after: str) -> None:
    """HEAD gives the headers of GET; of a stream nobody knows the length."""
    got, head = (example.get("dag-cbor", after, method) for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (200, b"")
    got.headers.pop("transfer-encoding", None)
    head.headers.pop("transfer-encoding", None)
    assert head.headers == got.headers


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_probe(example: Example, method: str) -> None:
    """The CID of nothing gives 200 and a CAR with it as the root."""
    for answer in (example.ask(f"/ipfs/{PROBE}?format=car", method), example.ask(f"/ipfs/{PROBE}", method, accept=CAR)):
        assert (answer.status, answer.headers["content-type"]) == (200, f"{CAR}; version=1; order=dfs; dups=n")
        if method == "GET":
            header = bytes.fromhex("a265726f6f747381d82a4500" + "01550000" + "6776657273696f6e01")
            assert answer.body == bytes([len(header)]) + header
