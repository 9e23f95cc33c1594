"""What a request asks for: forms, options of a CAR, ranges, names to save under."""

import pytest
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from cyberkv.cybergraph.gateway.cars import CarOptions
from cyberkv.cybergraph.gateway.names import disposition
from cyberkv.cybergraph.gateway.negotiate import Form, negotiate, prefers_page
from cyberkv.cybergraph.gateway.ranges import part_of
from tests.wire.asking import BROWSER, CAR, DAG_CBOR, DAG_JSON, RAW


@pytest.mark.parametrize(
    ("query", "accept", "forms"),
    [
        ("", "", ["file"]),
        ("", "*/*", ["file"]),
        ("", "image/png", ["file"]),
        ("", f"{RAW};q=0", ["file"]),
        ("", f"{RAW};q=lots", ["file"]),
        ("format=raw", "", ["raw"]),
        ("format=car", RAW, ["car"]),
        ("format=raw", CAR + "; dups=y", ["raw"]),
        ("format=raw&dag-scope=nonsense", "", ["raw"]),
        ("format=json", BROWSER, ["json"]),
        ("", RAW, ["raw"]),
        ("", f"foo, {DAG_JSON},bar", ["dag-json"]),
        ("", DAG_JSON.upper(), ["dag-json"]),
        ("", f"text/html, */*;q=0.1, {RAW};q=0.5", ["html", "raw", "file"]),
        ("", BROWSER, ["html", "file"]),
        ("", "text/html", ["html", "file"]),
        ("", f"{RAW};q=0.5, {CAR};q=0.7", ["car", "raw"]),
        ("", f"{RAW}, {CAR}", ["raw", "car"]),
        ("", "application/json, application/cbor;q=0.9", ["json", "cbor"]),
    ],
)
def test_which_forms_will_do(query: str, accept: str, forms: list[str]) -> None:
    assert list(negotiate(QueryParams(query), accept).forms) == forms


@pytest.mark.parametrize(
    ("query", "accept", "options"),
    [
        ("format=car", "", CarOptions()),
        ("", CAR, CarOptions()),
        ("", f"{CAR}; version=1; order=dfs; dups=y", CarOptions(dups=True)),
        ("", f"{CAR};order=unk", CarOptions()),
        ("", f"{CAR};order=dfs;dups=y;q=0.5, {CAR};dups=n;q=0.6", CarOptions()),
        ("dag-scope=block", CAR, CarOptions("block")),
        ("dag-scope=entity", CAR, CarOptions("block")),
        ("format=car&entity-bytes=0:10", "", CarOptions("block", entity_bytes="0:10")),
        ("format=car&entity-bytes=-10:*", "", CarOptions("block", entity_bytes="-10:*")),
        ("car-dups=y&car-order=dfs&car-version=1", f"{CAR};dups=n", CarOptions(dups=True)),
        ("format=raw&dag-scope=block", "", CarOptions()),
    ],
)
def test_which_car_is_wanted(query: str, accept: str, options: CarOptions) -> None:
    assert negotiate(QueryParams(query), accept).car == options


@pytest.mark.parametrize(
    ("query", "accept", "status"),
    [
        ("format=zip", RAW, 406),
        ("format=", RAW, 406),
        ("format=html", "", 406),
        ("format=file", "", 406),
        ("format=tar", "", 400),
        ("format=ipns-record", "", 400),
        ("", "application/x-tar", 400),
        ("", "application/vnd.ipfs.ipns-record", 400),
        ("format=car&dag-scope=most", "", 400),
        ("format=car&entity-bytes=1", "", 400),
        ("format=car&entity-bytes=1:2:3", "", 400),
        ("format=car&entity-bytes=*:2", "", 400),
        ("", f"{CAR};version=2", 406),
        ("", f"{CAR};order=random", 406),
        ("", f"{CAR};dups=maybe", 406),
        ("format=car&car-version=2", "", 406),
    ],
)
def test_what_cannot_be_had(query: str, accept: str, status: int) -> None:
    with pytest.raises(HTTPException) as caught:
        negotiate(QueryParams(query), accept)
    assert caught.value.status_code == status


NONE = "406"


@pytest.mark.parametrize(
    ("accept", "by_codec"),
    [
        ("", {"raw": "file", "dag-cbor": "dag-cbor", "dag-json": "dag-json", "json": "json", "cbor": "cbor"}),
        ("", {"dag-pb": NONE, "0x300": NONE}),
        (RAW, {"raw": "raw", "dag-cbor": "raw", "dag-pb": "raw", "0x300": "raw"}),
        (CAR, {"raw": "car", "dag-json": "car", "dag-pb": "car"}),
        (DAG_JSON, {"raw": NONE, "dag-cbor": "dag-json", "dag-json": "dag-json", "json": NONE, "dag-pb": NONE}),
        (DAG_CBOR, {"raw": NONE, "dag-cbor": "dag-cbor", "dag-json": "dag-cbor", "cbor": NONE}),
        ("application/json", {"json": "json", "dag-json": "json", "dag-cbor": "json", "cbor": NONE, "raw": NONE}),
        ("application/cbor", {"cbor": "cbor", "dag-json": "cbor", "dag-cbor": "cbor", "json": NONE}),
        ("application/json, */*", {"raw": "file", "dag-cbor": "json", "dag-pb": NONE}),
        (BROWSER, {"raw": "file", "dag-cbor": "html", "dag-json": "html", "json": "json"}),
        ("text/html", {"raw": "file", "dag-cbor": "html", "dag-pb": NONE}),
    ],
)
def test_which_form_a_block_has(accept: str, by_codec: dict[str, str]) -> None:
    wanted = negotiate(QueryParams(), accept)
    for codec, form in by_codec.items():
        if form == NONE:
            with pytest.raises(HTTPException) as caught:
                wanted.choose(codec, pages=True)
            assert caught.value.status_code == 406
        else:
            assert wanted.choose(codec, pages=True) == form
            if form == "html" and accept == BROWSER:
                assert wanted.choose(codec, pages=False) == codec


@pytest.mark.parametrize(
    ("query", "accept", "says"),
    [("", "", False), ("", "*/*", False), ("", RAW, True), ("format=raw", "", False), ("format=raw", RAW, False),
     ("format=raw", CAR, True), ("format=raw", BROWSER, False)],
)  # fmt: skip
def test_when_an_answer_names_its_own_address(query: str, accept: str, says: bool) -> None:
    wanted = negotiate(QueryParams(query), accept)
    assert wanted.says_location(wanted.choose("dag-cbor", pages=False)) is says


@pytest.mark.parametrize(
    ("accept", "page"),
    [(BROWSER, True), ("", False), ("*/*", False), (RAW, False), (f"{RAW}, text/html", False),
     (f"{RAW};q=0.9, text/html", True), ("text/html;q=0", False)],
)  # fmt: skip
def test_who_would_like_a_page(accept: str, page: bool) -> None:
    assert prefers_page(accept) is page


@pytest.mark.parametrize("asked", ["10:*", "10:20", "99:-1", "0:-11"])
def test_bytes_that_no_entity_has(asked: str) -> None:
    with pytest.raises(HTTPException) as caught:
        CarOptions(entity_bytes=asked).check_bytes(10)
    assert caught.value.status_code == 400


@pytest.mark.parametrize("asked", ["9:*", "0:*", "-99:*", "-1:*", "5:99", "0:-10", ""])
def test_bytes_that_an_entity_has(asked: str) -> None:
    CarOptions(entity_bytes=asked).check_bytes(10)


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("", (0, 10)), ("bytes=0-0", (0, 1)), ("bytes=2-3", (2, 4)), ("Bytes = 2-3", (2, 4)), ("bytes=2-", (2, 10)),
        ("bytes=-3", (7, 10)), ("bytes=-30", (0, 10)), ("bytes=8-99", (8, 10)), ("bytes=6-8,0-4", (6, 9)),
        ("bytes=20-,1-2", (1, 3)),
        ("bytes=3-2", (0, 10)), ("bytes=-", (0, 10)), ("bytes=a-b", (0, 10)), ("bytes", (0, 10)),
        ("lines=1-2", (0, 10)),
        ("bytes=1-2,x", (0, 10)), ("bytes=+1-2", (0, 10)), ("bytes=" + ",".join(["1-2"] * 65), (0, 10)),
        ("bytes=" + "9" * 5000 + "-", (0, 10)),
    ],
)  # fmt: skip
def test_which_part_a_range_is(header: str, part: tuple[int, int]) -> None:
    assert part_of(header, 10) == slice(*part)


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99-,100-"])
def test_ranges_outside(header: str) -> None:
    assert part_of(header, 10) is None
    assert part_of(header, 0) == slice(0, 0)


@pytest.mark.parametrize(
    ("query", "form", "header"),
    [
        ("", "raw", 'attachment; filename="C.bin"'),
        ("", "car", 'attachment; filename="C.car"'),
        ("", "dag-cbor", 'attachment; filename="C.cbor"'),
        ("", "dag-json", 'inline; filename="C.json"'),
        ("download=true", "dag-json", 'attachment; filename="C.json"'),
        ("download=false", "dag-json", 'inline; filename="C.json"'),
        ("filename=a.txt", "file", 'inline; filename="a.txt"'),
        ("filename=a.txt", "raw", 'attachment; filename="a.txt"'),
        (
            "filename=test%D1%82%D0%B5.pdf",
            "raw",
            "attachment; filename=\"test__.pdf\"; filename*=UTF-8''test%D1%82%D0%B5.pdf",
        ),
        ('filename=a"; x="b%0d%0aSet-Cookie: c', "raw", 'attachment; filename="a_; x=_b__Set-Cookie_ c"'),
        ("filename=../../etc/passwd", "raw", 'attachment; filename="_.._etc_passwd"'),
        ("filename=%E2%80%AEfdp.exe", "raw", 'attachment; filename="_fdp.exe"'),
        ("filename=%20.%20", "raw", 'attachment; filename="C.bin"'),
    ],
)
def test_names_to_save_under(query: str, form: Form, header: str) -> None:
    assert disposition(QueryParams(query), "C", form) == header


def test_long_names_are_cut() -> None:
    assert len(disposition(QueryParams("filename=" + "a" * 5000), "C", "raw")) < 300
