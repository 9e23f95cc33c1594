"""What stands before the blocks of a CAR file: its roots, and the size and CID of each section. CIDs of any kind."""

from typing import NamedTuple

from .cid import CID_BYTES, CID_PREFIXES, Cid
from .errors import Corrupt, MalformedCar, MalformedCid, TruncatedCar, UnsupportedFormat
from .foreign import MOST_CID_BYTES, AnyCid, ForeignCid, multihash_of, read_cid
from .ipld import read_dag_cbor
from .varint import read_varint


class Section(NamedTuple):
    """One block of the file."""

    multihash: bytes
    """What it is found by; empty if it cannot be checked."""
    start: int
    """Where its bytes begin."""
    size_bytes: int


def read_section(window: bytes, begin: int, at: int) -> Section:
    """Read what stands before the block that begins in `window`. Raises `MalformedCar`, `TruncatedCar`."""
    size_bytes, cid_at = read_size(window, begin, at)
    end = cid_at + CID_BYTES
    if window.startswith(CID_PREFIXES, cid_at) and size_bytes >= CID_BYTES and end <= len(window):
        return Section(window[cid_at + 2 : end], at + end - begin, size_bytes - CID_BYTES)  # as below, and quicker
    name = window[cid_at : cid_at + min(size_bytes, MOST_CID_BYTES)]
    try:
        cid, cid_bytes = read_cid(name)
    except MalformedCid as error:
        if len(name) < min(size_bytes, MOST_CID_BYTES):
            raise cut(at) from error
        raise MalformedCar(f"CAR at byte {at}: {error}", offset=at) from error
    multihash = multihash_of(cid) if _is_checkable(cid) else b""
    return Section(multihash, at + cid_at - begin + cid_bytes, size_bytes - cid_bytes)


def read_roots(data: bytes, at: int) -> list[AnyCid]:
    """Read the header of a CARv1, which stands at `at`. Raises `MalformedCar`."""
    try:
        header = read_dag_cbor(data)
    except Corrupt as error:
        raise MalformedCar(f"CAR at byte {at}: header: {error}", offset=at) from error
    if not isinstance(header, dict) or header.get("version") != 1:
        raise MalformedCar(f"CAR at byte {at}: header is not {{roots, version: 1}}", offset=at)
    roots = header.get("roots")
    if not isinstance(roots, list):
        raise MalformedCar(f"CAR at byte {at}: roots are not a list of links", offset=at)
    links: list[AnyCid] = [root for root in roots if isinstance(root, (Cid, ForeignCid))]
    if len(links) != len(roots):
        raise MalformedCar(f"CAR at byte {at}: roots are not a list of links", offset=at)
    return links


def read_size(window: bytes, begin: int, at: int) -> tuple[int, int]:
    """Read a size: give it and the place after it. Raises `MalformedCar`, `TruncatedCar`."""
    try:
        size_bytes, after = read_varint(window, begin)
    except EOFError as error:
        raise TruncatedCar(f"CAR ends inside the size at byte {at}", offset=at) from error
    except ValueError as error:
        raise MalformedCar(f"CAR at byte {at}: size: {error}", offset=at) from error
    if size_bytes == 0:
        raise MalformedCar(f"CAR at byte {at}: empty section", offset=at)
    return size_bytes, after


def _is_checkable(cid: AnyCid) -> bool:
    try:
        if isinstance(cid, ForeignCid):
            cid.require_checkable()
    except UnsupportedFormat:
        return False
    return True


def cut(at: int) -> TruncatedCar:
    """Build the error for a file that ends inside what begins at `at`."""
    return TruncatedCar(
        f"CAR file ends inside what begins at byte {at}", hint="what stands before it is usable", offset=at
    )
