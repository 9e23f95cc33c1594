"""The path gateway specification, as far as it speaks of dag-cbor and dag-json: one rule a test."""

import pytest

from cyberkv.cybergraph.foreign import parse_cid
from tests.wire.asking import BROWSER, DAG_CBOR, DAG_JSON
from tests.wire.example import Example

TYPES = {"dag-cbor": DAG_CBOR, "dag-json": DAG_JSON, "json": "application/json", "cbor": "application/cbor"}
ENDINGS = {"dag-cbor": "cbor", "dag-json": "json", "json": "json", "cbor": "cbor"}
DAGS = ["dag-cbor", "dag-json"]


@pytest.mark.parametrize("codec", TYPES)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_without_a_form(example: Example, codec: str, method: str) -> None:
    """Without an explicit form a node comes as a raw block does, under the media type of its codec."""
    answer = example.get(codec, "", method)
    assert (answer.status, answer.headers["content-type"]) == (200, TYPES[codec])
    assert answer.headers["content-length"] == str(len(example.data[codec]))
    assert answer.body == (example.data[codec] if method == "GET" else b"")


@pytest.mark.parametrize("codec", TYPES)
def test_in_its_own_codec(example: Example, codec: str) -> None:
    """A codec asked for by format or by Accept gives the same payload as the raw block."""
    for answer in (example.get(codec, f"?format={codec}"), example.get(codec, accept=f"foo, {TYPES[codec]},bar")):
        assert (answer.status, answer.body) == (200, example.data[codec])
        assert answer.headers["content-type"] == TYPES[codec]
        assert answer.headers["etag"] == f'"{example.cids[codec]}.{codec}"'


@pytest.mark.parametrize(
    ("name", "form"),
    [("leaf", "dag-json"), ("leaf", "cbor"), ("file", "dag-json"), ("file", "dag-cbor"), ("json", "dag-json"),
     ("json", "cbor"), ("json", "dag-cbor"), ("cbor", "dag-cbor"), ("cbor", "json")],
)  # fmt: skip
def test_in_another_codec(example: Example, name: str, form: str) -> None:
    """A codec that the block does not have is 406."""
    assert example.get(name, f"?format={form}").status == 406
    assert example.get(name, accept=TYPES[form]).status == 406


@pytest.mark.parametrize(("codec", "other"), [DAGS, DAGS[::-1]])
def test_nodes_are_turned_into_one_another(example: Example, codec: str, other: str) -> None:
    """An extra beside the specification: dag-cbor is given as dag-json, and the reverse."""
    for name in (f"{codec} end", f"{codec} middle"):
        answer = example.get(name, f"?format={other}")
        assert (answer.status, answer.headers["content-type"]) == (200, TYPES[other])
        head = example.get(name, f"?format={other}", "HEAD")
        assert head.headers == answer.headers
    end = example.get(f"{codec} end", f"?format={other}").body
    assert end == example.data[f"{other} end"]
    assert end != example.data[f"{codec} end"]


@pytest.mark.parametrize("codec", DAGS)
@pytest.mark.parametrize(("form", "like"), [("json", "dag-json"), ("cbor", "dag-cbor")])
def test_under_the_plain_type(example: Example, codec: str, form: str, like: str) -> None:
    """An extra: the same payload as in the dag form, for programs that know the plain type only."""
    answer = example.get(codec, f"?format={form}")
    assert (answer.headers["content-type"], answer.body) == (TYPES[form], example.get(codec, f"?format={like}").body)


@pytest.mark.parametrize("form", ["tar", "ipns-record"])
def test_forms_for_what_is_not_here(example: Example, form: str) -> None:
    """TAR is for UnixFS and records are for IPNS: both are 400 elsewhere."""
    assert example.get("dag-cbor", f"?format={form}").status == 400


@pytest.mark.parametrize("codec", TYPES)
def test_names_to_save_under(example: Example, codec: str) -> None:
    """Binary forms are attachments, readable ones inline; `filename` and `download` are obeyed."""
    how = "inline" if "json" in codec else "attachment"
    end = ENDINGS[codec]
    for after, expected in {
        "": f'{how}; filename="{example.cids[codec]}.{end}"',
        f"&filename=foobar.{end}": f'{how}; filename="foobar.{end}"',
        f"&filename=foobar.{end}&download=true": f'attachment; filename="foobar.{end}"',
    }.items():
        assert example.get(codec, f"?format={codec}{after}").headers["content-disposition"] == expected


@pytest.mark.parametrize("codec", DAGS)
def test_caching(example: Example, codec: str) -> None:
    """Nodes are as immutable as raw blocks, and every form has a tag of its own; streams: `test_gateway_caching`."""
    answers = [example.get(codec, f"?format={form}") for form in (*TYPES, "raw", "car")]
    assert {each.headers["cache-control"] for each in answers[:-1]} == {"public, max-age=29030400, immutable"}
    assert len({each.headers["etag"] for each in answers}) == len(answers)
    for form, each in zip((*TYPES, "raw", "car"), answers, strict=True):
        assert example.get(codec, f"?format={form}", if_none_match=each.headers["etag"]).status == 304
        assert example.get(codec, f"?format={form}", if_none_match='"else"').status == 200


@pytest.mark.parametrize("codec", DAGS)
def test_a_range_of_a_node(example: Example, codec: str) -> None:
    """Ranges hold for nodes as for raw blocks, also for one that was converted."""
    for form in ("dag-cbor", "dag-json"):
        whole = example.get(codec, f"?format={form}").body
        answer = example.get(codec, f"?format={form}", range="bytes=3-9")
        assert (answer.status, answer.body) == (206, whole[3:10])
        assert answer.headers["content-range"] == f"bytes 3-9/{len(whole)}"


# Paths.


@pytest.mark.parametrize("codec", DAGS)
def test_a_path_goes_along_links(example: Example, codec: str) -> None:
    """Links are followed, one after the other, to the block at the end."""
    answer = example.get(codec, "/foo/link/bar")
    assert (answer.status, answer.body) == (200, example.data[f"{codec} end"])
    assert answer.headers["content-type"] == TYPES[codec]
    assert example.get(codec, "/foo/link/bar", "HEAD").headers == answer.headers
    assert example.get(codec, "/foo/link").body == example.data[f"{codec} middle"]


@pytest.mark.parametrize(
    "path",
    ["/list/0", "/foo/deep/1/x", "/again", "/again/", "/a%20b", "//again", "/list/../again", "/./again",
     "/foo/link/leaf", "/foo%2Fdeep/1/x", "/%C5%82%3F%23", "/%252C"],
)  # fmt: skip
def test_a_path_goes_through_lists_and_any_key(example: Example, path: str) -> None:
    """A segment is decoded once; a slash in it separates; dots and doubled slashes are resolved."""
    answer = example.get("dag-cbor", path)
    assert (answer.status, answer.body) == (200, example.data["leaf"])


@pytest.mark.parametrize("codec", DAGS)
@pytest.mark.parametrize("path", ["/nothing", "/foo/nothing", "/foo/link/nothing", "/foo/link/bar/nothing", "/list/2",
                                  "/list/-1", "/list/00", "/list/+0", "/list/x", "/list/1/x", "/foo/link/bar/hello/x",
                                  "/again/x", "/Foo", "/list/%D9%A0"])  # fmt: skip
def test_what_a_path_does_not_find(example: Example, codec: str, path: str) -> None:
    """404 where the content has no such path, and the body says which part is missing."""
    for form in ("", "?format=raw", "?format=car", "?format=dag-json"):
        assert example.get(codec, path + form).status == 404
    if path.endswith("nothing"):
        assert b"'nothing'" in example.get(codec, path).body


@pytest.mark.parametrize("codec", DAGS)
@pytest.mark.parametrize("path", ["/foo", "/foo/deep", "/foo/deep/0", "/list", "/list/1", "/foo/link/bar/hello"])
@pytest.mark.parametrize("form", ["", "?format=raw", "?format=car", "?format=dag-json", "?format=dag-cbor"])
def test_a_path_that_ends_inside_a_block(example: Example, codec: str, path: str, form: str) -> None:
    """501 for a value that is not a link: what is inside a block has no address."""
    answer = example.get(codec, path + form)
    assert answer.status == 501
    assert b"reading IPLD Kinds other than Links (CBOR Tag 42) is not implemented" in answer.body


def test_a_path_to_what_is_not_here(example: Example) -> None:
    """404 for a link to a block that is not available, and 412 under only-if-cached."""
    for path in ("/gone", "/gone/further", "/inline"):
        assert example.get("dag-cbor", path).status == 404
        assert example.get("dag-cbor", path, cache_control="only-if-cached").status == 412


def test_a_path_through_another_codec(example: Example) -> None:
    """501: entries of dag-pb have no addresses here, and the block itself has one."""
    assert example.get("dag-cbor", "/file?format=raw").body == example.data["file"]
    assert example.get("dag-cbor", "/file/x?format=raw").status == 501


@pytest.mark.parametrize("path", ["/..", "/../x", "/again/../../x", "/%2e%2e/x", "/%ff", "/" + "x" * 1100])
def test_paths_that_make_no_sense(example: Example, path: str) -> None:
    """400 for a path that leaves its root, is not UTF-8, or is too long."""
    assert example.get("dag-cbor", path).status == 400


# What an answer says of its place.


@pytest.mark.parametrize("codec", DAGS)
def test_roots_on_the_way(example: Example, codec: str) -> None:
    """X-Ipfs-Roots lists the CIDs on the path, from the first to the one that is answered."""
    middle, end = f"{codec} middle", f"{codec} end"
    headers = example.get(codec, "/foo/link/bar").headers
    assert headers["x-ipfs-roots"] == ",".join(str(example.cids[name]) for name in (codec, middle, end))
    assert example.get(codec).headers["x-ipfs-roots"] == str(example.cids[codec])


@pytest.mark.parametrize(
    ("path", "uri", "decoded"),
    [
        ("", "", ""), ("/", "/", "/"), ("/again", "/again", "/again"), ("/again/", "/again/", "/again/"),
        ("/foo%2Fdeep/./1/x?format=raw&filename=y", "/foo/deep/1/x", "/foo/deep/1/x"),
        ("/a%20b", "/a%20b", "/a b"), ("/%252C", "/%252C", "/%2C"), ("/%c5%82%3F%23", "/%C5%82%3F%23", None),
    ],
)  # fmt: skip
def test_the_path_of_an_answer(example: Example, path: str, uri: str, decoded: str | None) -> None:
    """Ipfs-Uri has one form whatever was asked; X-Ipfs-Path is the decoded path, or left out where it has no form."""
    headers = example.get("dag-cbor", path).headers
    cid = example.cids["dag-cbor"]
    assert headers["ipfs-uri"] == f"ipfs://{cid}{uri}"
    assert headers.get("x-ipfs-path") == (None if decoded is None else f"/ipfs/{cid}{decoded}")


def test_any_spelling_of_a_cid(example: Example) -> None:
    """A CID may be written in any base; Ipfs-Uri has it in base32."""
    cid = example.cids["dag-cbor"]
    answer = example.ask(f"/ipfs/f{cid.hex()}/again")
    assert parse_cid(f"f{cid.hex()}") == cid
    assert (answer.status, answer.headers["ipfs-uri"]) == (200, f"ipfs://{cid}/again")


def test_where_an_answer_can_be_had_again(example: Example) -> None:
    """Content-Location names the URL with its form where Accept chose it, or asked for another than the URL."""
    cid = example.cids["dag-cbor"]
    assert example.get("dag-cbor", accept=DAG_JSON).headers["content-location"] == f"/ipfs/{cid}?format=dag-json"
    answer = example.get("dag-cbor", "/a%20b?format=raw", accept=DAG_JSON)
    assert answer.headers["content-location"] == f"/ipfs/{cid}/a%20b?format=raw"
    for after, accept in (("", ""), ("", "*/*"), ("?format=raw", ""), ("?format=dag-json", DAG_JSON)):
        assert "content-location" not in example.get("dag-cbor", after, accept=accept).headers


# Pages.


@pytest.mark.parametrize("codec", DAGS)
@pytest.mark.parametrize("path", ["", "/", "/foo/link", "/foo/link/"])
def test_a_page_for_people(example: Example, codec: str, path: str) -> None:
    """Where Accept prefers text/html the answer is a generated page, which is not immutable, without disposition."""
    answer = example.get(codec, path, accept=BROWSER)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"</html>" in answer.body
    assert "immutable" not in answer.headers.get("cache-control", "")
    assert "content-disposition" not in answer.headers
    assert "accept" in answer.headers["vary"].lower()
    assert answer.headers["access-control-allow-origin"] == "*"
    assert example.get(codec, path, "HEAD", accept=BROWSER).body == b""


@pytest.mark.parametrize("codec", DAGS)
def test_no_page_for_programs(example: Example, codec: str) -> None:
    """Without text/html, or with a form in the URL, the answer is bytes."""
    for after, accept in (("", "*/*"), ("", ""), (f"?format={codec}", BROWSER), ("", f"{TYPES[codec]}, text/html")):
        assert example.get(codec, after, accept=accept).body == example.data[codec]


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/gone", 404), ("/foo", 501), ("/..", 400)])
def test_refusals_for_people(example: Example, path: str, status: int) -> None:
    """A refusal has the same status on a page as in plain text."""
    answer = example.get("dag-cbor", path, accept=BROWSER)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert answer.headers["cache-control"] == "no-store"
    assert example.get("dag-cbor", path).headers["content-type"] == "text/plain; charset=utf-8"
