"""The trustless gateway specification, as far as it speaks of single blocks: one rule a test."""

import pytest

from cyberkv.cybergraph.errors import DigestMismatch
from cyberkv.cybergraph.gateway.app import PROBE
from tests.wire.asking import BROWSER, RAW
from tests.wire.example import ABSENT, NAMES, Example


@pytest.mark.parametrize("name", NAMES)
def test_the_body_hashes_to_the_cid(example: Example, name: str) -> None:
    """The hash of the body must match the multihash of the CID that was asked for."""
    body = example.get(name, "?format=raw").body
    example.cids[name].verify(body)
    with pytest.raises(DigestMismatch):
        example.cids[name].verify(body + b"\0")


def test_the_type_must_be_supported(example: Example) -> None:
    """application/vnd.ipld.raw must be supported, among other types and at any weight."""
    for accept in (RAW, RAW.upper(), f"{RAW};q=0.1, image/png", f"image/png, {RAW}", f"{RAW}, */*;q=0.1"):
        assert example.get("dag-cbor", accept=accept).headers["content-type"] == RAW
    assert example.get("dag-cbor", accept=f"{RAW};q=0").headers["content-type"] != RAW


def test_the_format_of_the_url_wins(example: Example) -> None:
    """When both are present, `format` takes precedence over Accept."""
    for accept in ("application/vnd.ipld.car", BROWSER, "*/*"):
        assert example.get("dag-cbor", "?format=raw", accept=accept).headers["content-type"] == RAW


def test_disposition(example: Example) -> None:
    """Content-Disposition must be an attachment, `<cid>.bin` where no other name was given."""
    for accept in (RAW, BROWSER):
        got = example.get("leaf", "?format=raw", accept=accept).headers["content-disposition"]
        assert got == f'attachment; filename="{example.cids["leaf"]}.bin"'
    assert 'filename="a.bin"' in example.get("leaf", "?format=raw&filename=a.bin").headers["content-disposition"]


def test_location(example: Example) -> None:
    """Content-Location is given where the URL does not name the form."""
    assert example.get("leaf", accept=RAW).headers["content-location"] == f"/ipfs/{example.cids['leaf']}?format=raw"
    assert "content-location" not in example.get("leaf", "?format=raw").headers


def test_the_tag(example: Example) -> None:
    """An Etag must be there, of the CID and the form."""
    tags = {name: example.get(name, "?format=raw").headers["etag"] for name in NAMES}
    assert tags == {name: f'"{example.cids[name]}.raw"' for name in NAMES}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_block_that_is_not_available(example: Example, method: str) -> None:
    """404 for any CID that is not in the data set, by HEAD and by GET; 412 where only what is cached is wanted."""
    for text in (ABSENT, "bafkqabtimvwgy3yk", "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKtJDd"):
        assert example.ask(f"/ipfs/{text}?format=raw", method).status == 404
        assert example.ask(f"/ipfs/{text}?format=raw", method, cache_control="only-if-cached").status == 412


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_only_what_is_cached(example: Example, method: str) -> None:
    """`only-if-cached` changes nothing for a block that is here."""
    answers = [example.get("leaf", "?format=raw", method, **more) for more in ({}, {"cache_control": "only-if-cached"})]
    assert (answers[0].status, answers[0].headers, answers[0].body) == (
        answers[1].status, answers[1].headers, answers[1].body,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("form", "accept"), [("?format=raw", ""), ("", RAW), ("", ""), ("", BROWSER)])
def test_the_probe(example: Example, form: str, accept: str, method: str) -> None:
    """The CID of nothing must give 200 and an empty body."""
    answer = example.ask(f"/ipfs/{PROBE}{form}", method, accept=accept)
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
    assert answer.headers["content-type"] == (RAW if form or accept == RAW else "application/octet-stream")
    assert example.ask(f"/ipfs/{PROBE}/x{form}", method, accept=accept).status == 404
