"""No bytes of a stranger do more than be refused by type: every reader, on inputs that were right once."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyberkv.cybergraph.errors import CyberKVError
from tests.fuzz.edits import spoilt
from tests.fuzz.targets import TARGETS, Target

SLOW = {"proof", "challenge", "signed grant", "public key to wrap for"}
PEAK_BYTES = 8 << 20


def refusal(target: Target, data: bytes) -> CyberKVError | None:
    try:
        target.read(data)
    except CyberKVError as error:
        return error
    return None


@pytest.mark.parametrize("name", TARGETS)
def test_control_what_is_right_is_accepted(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].read(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_bytes_are_refused_by_type_or_are_another_right_input(name: str) -> None:
    target = TARGETS[name]
    refused = 0

    @settings(max_examples=40 if name in SLOW else 100)
    @given(spoilt(target.seeds))
    def check(data: bytes) -> None:
        nonlocal refused
        error = refusal(target, data)
        if error is not None:
            refused += 1
            assert str(error)
            assert error.exit_code in (2, 4, 5, 6)

    check()
    assert refused > 10


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=6)
@given(st.data())
def test_what_promises_much_takes_little_memory(name: str, data: st.DataObject) -> None:
    """A head that announces more than there is, in front of a good input or in its middle."""
    target = TARGETS[name]
    seed = data.draw(st.sampled_from(target.seeds))
    head = data.draw(
        st.sampled_from([b"\x5b\x00\x00\x00\x7f\xff\xff\xff\xff", b"\x9a\x7f\xff\xff\xff", b"\x81" * 5000])
    )
    at = data.draw(st.integers(0, len(seed)))
    tracemalloc.start()
    try:
        refusal(target, seed[:at] + head + seed[at:])
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES
