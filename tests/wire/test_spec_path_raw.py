"""The path gateway specification, as far as it speaks of single raw blocks: one rule a test."""

import pytest

from tests.wire.asking import BROWSER, RAW
from tests.wire.example import ABSENT, NAMES, Example


@pytest.mark.parametrize("name", NAMES)
def test_a_block_of_any_codec_comes_raw(example: Example, name: str) -> None:
    """`format=raw` and its media type give the opaque bytes of the block, whatever the codec."""
    for answer in (example.get(name, "?format=raw"), example.get(name, accept=RAW)):
        assert (answer.status, answer.headers["content-type"]) == (200, RAW)
        assert answer.body == example.data[name]


def test_the_format_of_the_url_wins(example: Example) -> None:
    """When both are present, `format` takes precedence over Accept."""
    answer = example.get("leaf", "?format=raw", accept="application/vnd.ipld.car")
    assert answer.headers["content-type"] == RAW


def test_a_path_leads_to_a_raw_block(example: Example) -> None:
    """The content path is traversed first; the form is that of the block at its end."""
    answer = example.get("dag-cbor", "/foo/deep/1/x?format=raw")
    assert (answer.status, answer.body) == (200, example.data["leaf"])


def test_length_and_disposition(example: Example) -> None:
    """Raw answers are attachments named after their CID, with a length, and their type is not to be guessed at."""
    headers = example.get("leaf", "?format=raw").headers
    assert headers["content-length"] == "100"
    assert headers["content-disposition"] == f'attachment; filename="{example.cids["leaf"]}.bin"'
    assert headers["x-content-type-options"] == "nosniff"


def test_a_name_can_be_given(example: Example) -> None:
    """`filename` is put into Content-Disposition, in ASCII and in UTF-8 where it needs that."""
    headers = example.get("leaf", "?format=raw&filename=foobar.bin").headers
    assert headers["content-disposition"] == 'attachment; filename="foobar.bin"'
    headers = example.get("leaf", "?format=raw&filename=%C5%82.bin").headers
    assert headers["content-disposition"] == "attachment; filename=\"_.bin\"; filename*=UTF-8''%C5%82.bin"


def test_download_forces_an_attachment(example: Example) -> None:
    """`download=true` must give `Content-Disposition: attachment`; a custom name alone gives `inline`."""
    assert example.get("leaf", "?filename=a.txt").headers["content-disposition"] == 'inline; filename="a.txt"'
    asked = example.get("leaf", "?filename=a.txt&download=true")
    assert asked.headers["content-disposition"] == 'attachment; filename="a.txt"'


def test_caching(example: Example) -> None:
    """Everything under /ipfs is immutable, and has an Etag that depends on CID and form."""
    headers = example.get("leaf", "?format=raw").headers
    assert headers["cache-control"] == "public, max-age=29030400, immutable"
    assert headers["etag"] == f'"{example.cids["leaf"]}.raw"'
    assert example.get("leaf").headers["etag"] == f'"{example.cids["leaf"]}"'


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("known", ['"{}.raw"', 'W/"{}.raw"', '"other", "{}.raw"', "*"])
def test_what_the_reader_has_is_not_sent(example: Example, known: str, method: str) -> None:
    """A match of If-None-Match must give 304 without a payload."""
    answer = example.get("leaf", "?format=raw", method, if_none_match=known.format(example.cids["leaf"]))
    assert (answer.status, answer.body) == (304, b"")
    other = example.get("leaf", "?format=raw", method, if_none_match=f'"{example.cids["leaf"]}"')
    assert other.status == 200


def test_dates_do_not_matter(example: Example) -> None:
    """Content under a CID has no date: If-Modified-Since is passed over."""
    assert example.get("leaf", if_modified_since="Fri, 01 Jan 2100 00:00:00 GMT").status == 200


@pytest.mark.parametrize("form", ["?format=raw", ""])
@pytest.mark.parametrize(
    ("asked", "part"), [("bytes=6-16", (6, 17)), ("bytes=90-", (90, 100)), ("bytes=-5", (95, 100))]
)
def test_a_range(example: Example, form: str, asked: str, part: tuple[int, int]) -> None:
    """A single range gives 206 with exactly these bytes, and says where they stand."""
    answer = example.get("leaf", form, range=asked)
    assert (answer.status, answer.body) == (206, example.data["leaf"][slice(*part)])
    assert answer.headers["content-range"] == f"bytes {part[0]}-{part[1] - 1}/100"
    assert answer.headers["content-length"] == str(part[1] - part[0])
    assert answer.headers["accept-ranges"] == "bytes"


def test_a_range_at_the_end_of_a_path(example: Example) -> None:
    """Ranges hold for whatever block the path ends at."""
    answer = example.get("dag-cbor", "/again", range="bytes=0-1")
    assert (answer.status, answer.body) == (206, example.data["leaf"][:2])


def test_a_range_outside(example: Example) -> None:
    """A range of which the block has nothing is 416, and tells how long the block is."""
    answer = example.get("leaf", range="bytes=100-")
    assert (answer.status, answer.headers["content-range"]) == (416, "bytes */100")


def test_several_ranges(example: Example) -> None:
    """More than one range need not be supported: the first is given, and the answer says which it is."""
    answer = example.get("leaf", "?format=raw", range="bytes=6-16,0-4")
    assert (answer.status, answer.body) == (206, example.data["leaf"][6:17])
    assert (answer.headers["content-type"], answer.headers["content-range"]) == (RAW, "bytes 6-16/100")


def test_a_range_of_what_may_have_changed(example: Example) -> None:
    """If-Range with another tag gives the whole block."""
    tag = example.get("leaf").headers["etag"]
    assert example.get("leaf", range="bytes=0-1", if_range=tag).status == 206
    for other in ('"other"', f"W/{tag}", "Fri, 01 Jan 2100 00:00:00 GMT"):
        answer = example.get("leaf", range="bytes=0-1", if_range=other)
        assert (answer.status, answer.body) == (200, example.data["leaf"])


def test_a_range_of_a_head(example: Example) -> None:
    """Ranges are for GET."""
    answer = example.get("leaf", "", "HEAD", range="bytes=0-1")
    assert (answer.status, answer.headers["content-length"]) == (200, "100")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["", "?format=raw"])
def test_head_is_get_without_a_payload(example: Example, name: str, form: str) -> None:
    """HEAD gives the headers of GET, with the length."""
    got, head = (example.get(name, form, method) for method in ("GET", "HEAD"))
    assert head.body == b""
    assert (head.status, head.headers) == (got.status, got.headers)


@pytest.mark.parametrize("accept", ["", "*/*", BROWSER])
def test_bytes_of_other_people_are_never_run(example: Example, accept: str) -> None:
    """Without a form a raw block is bytes, also where they look like a page."""
    answer = example.get("page", accept=accept)
    assert (answer.status, answer.body) == (200, example.data["page"])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("form", ["", "?format=raw", "?format=car", "?format=dag-cbor"])
def test_what_is_absent(example: Example, form: str, method: str) -> None:
    """404 must say that content is not available; under only-if-cached it is 412 and nothing more."""
    missing, cached = (
        example.ask(f"/ipfs/{ABSENT}{form}", method, **options) for options in ({}, {"cache_control": "only-if-cached"})
    )
    assert (missing.status, cached.status, cached.body) == (404, 412, b"")
    assert missing.headers["cache-control"] == "no-store"
    here = example.get("dag-cbor", form, method, cache_control="only-if-cached")
    assert here.status == 200


@pytest.mark.parametrize("text", ["x", "bafkq", "Qm", "bafkreiZZ", "%00", "b" * 400])
def test_what_is_not_a_cid(example: Example, text: str) -> None:
    """400 for a root that is not a CID."""
    assert example.ask(f"/ipfs/{text}?format=raw").status == 400


@pytest.mark.parametrize("after", ["", "/", "/x"])
def test_service_workers(example: Example, after: str) -> None:
    """A request to register a service worker is 400."""
    assert example.get("dag-cbor", after, service_worker="script").status == 400


def test_scripts_of_any_site_may_read(example: Example) -> None:
    """Answers, refusals among them, allow other origins, and a preflight succeeds."""
    for answer in (
        example.get("leaf"),
        example.get("leaf", "/x"),
        example.get("leaf", "?format=car"),
        example.get("leaf", "", "OPTIONS", access_control_request_method="GET", origin="https://example.org"),
    ):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert {"GET", "HEAD", "OPTIONS"} <= {*answer.headers["access-control-allow-methods"].split(", ")}
        allowed = {*answer.headers["access-control-allow-headers"].split(", ")}
        assert {"Content-Type", "Range", "User-Agent", "X-Requested-With"} <= allowed
        exposed = {*answer.headers["access-control-expose-headers"].split(", ")}
        assert {"Content-Range", "Content-Length", "X-Ipfs-Roots", "Ipfs-Uri"} <= exposed
    assert (answer.status, answer.body) == (204, b"")
