"""dag-cbor against two independent libraries, over generated values and damaged bytes.

Laws: all three give the same bytes for a value; whatever this decoder accepts, both others read as the same
value; what they accept and this one refuses is refused for a reason named below, in `is_lax`.
"""

from typing import Any

import cbrrr
import dag_cbor
from hypothesis import example, given
from hypothesis import strategies as st
from multiformats import CID as OracleCid

from cyberkv.cybergraph.cid import CID_PREFIXES, Cid
from cyberkv.cybergraph.dagcbor import MAX_INT, decode, encode
from cyberkv.cybergraph.errors import CyberKVError, LimitExceeded
from cyberkv.cybergraph.nodes import links
from fixtures.golden import NODES

cids = st.builds(
    lambda prefix, digest: Cid(prefix + digest),
    st.sampled_from(CID_PREFIXES),
    st.binary(min_size=32, max_size=32),
)
scalars = (
    st.none() | st.booleans() | st.integers(-MAX_INT - 1, MAX_INT) | st.integers(0, 300)
    | st.text(max_size=30)
    | st.binary(max_size=40) | cids
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=6), inner, max_size=6),
    max_leaves=30,
)


def for_oracle(value: Any) -> Any:
    """The same value with the CID class of `multiformats`, which `dag_cbor` uses."""
    if isinstance(value, Cid):
        return OracleCid.decode(str(value))
    if isinstance(value, list):
        return [for_oracle(item) for item in value]
    if isinstance(value, dict):
        return {key: for_oracle(item) for key, item in value.items()}
    return value


@given(values)
def test_three_encoders_agree_and_every_value_comes_back(value: Any) -> None:
    data = encode(value)
    assert data == dag_cbor.encode(for_oracle(value))
    assert data == cbrrr.encode_dag_cbor(value, cid_type=Cid)
    back = decode(data)
    assert back == value
    assert repr(back) == repr(decode(data))
    assert encode(back) == data


@given(values, values)
def test_different_values_have_different_bytes(a: Any, b: Any) -> None:
    assert (encode(a) == encode(b)) == (repr(sort(a)) == repr(sort(b)))


def sort(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sort(value[key]) for key in sorted(value)}
    return [sort(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_links_are_the_cids_in_wire_order(value: Any) -> None:
    found: list[Cid] = []
    cbrrr.decode_dag_cbor(encode(value), cid_ctor=lambda data: found.append(Cid(data)))
    assert links(encode(value)) == found


damage = st.lists(
    st.tuples(
        st.integers(0, 1 << 16),
        st.sampled_from(["set", "insert", "delete"]),
        st.binary(min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=3,
)


def damaged(data: bytes, steps: list[tuple[int, str, bytes]]) -> bytes:
    for at, verb, new in steps:
        at %= len(data) + 1
        end = {"set": at + len(new), "insert": at, "delete": at + len(new)}[verb]
        data = data[:at] + (b"" if verb == "delete" else new) + data[end:]
    return data


@given(st.binary(max_size=24) | st.builds(damaged, values.map(encode), damage))
@example(bytes.fromhex("fb3ff0000000000000"))
@example(bytes.fromhex("1bffffffffffffffff"))
def test_what_is_accepted_is_what_the_oracles_accept(data: bytes) -> None:
    ours, theirs = outcome(decode, data), outcome(cbrrr_decode, data)
    if isinstance(ours, Exception):
        assert isinstance(ours, CyberKVError)
        assert isinstance(theirs, Exception) or is_lax(theirs[0])
    else:
        assert theirs == ours
        assert for_oracle(ours[0]) == dag_cbor.decode(data)
        assert encode(ours[0]) == data


def outcome(read: Any, data: bytes) -> Any:
    """The value in a tuple (it may be None itself), or the error."""
    try:
        return (read(data),)
    except Exception as error:
        return error


def cbrrr_decode(data: bytes) -> Any:
    return cbrrr.decode_dag_cbor(data, cid_ctor=Cid)


def is_lax(value: Any) -> bool:
    """Does the value hold what dag-cbor allows and nodes never have: floats, integers over 64 signed bits?"""
    if isinstance(value, float):
        return True
    if type(value) is int:
        return not -MAX_INT - 1 <= value <= MAX_INT
    if isinstance(value, list):
        return any(map(is_lax, value))
    return isinstance(value, dict) and any(map(is_lax, value.values()))


@given(st.sampled_from(sorted(NODES)), damage)
def test_damaged_nodes_are_accepted_only_where_the_oracle_does(name: str, steps: list[tuple[int, str, bytes]]) -> None:
    data = damaged(NODES[name].encode(), steps)
    ours, theirs = outcome(decode, data), outcome(cbrrr_decode, data)
    assert isinstance(ours, tuple) == (isinstance(theirs, tuple) and not is_lax(theirs[0]))


@given(st.integers(1, 40), st.booleans())
def test_depth_is_bounded_in_both_directions(depth: int, maps: bool) -> None:
    value: Any = 0
    for _ in range(depth):
        value = {"": value} if maps else [value]
    data = cbrrr.encode_dag_cbor(value)
    if depth <= 16:
        assert decode(data) == value
        assert encode(value) == data
    else:
        assert isinstance(outcome(decode, data), LimitExceeded)
        assert isinstance(outcome(encode, value), LimitExceeded)
