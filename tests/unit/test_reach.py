import pytest

from cyberkv.cybergraph.peers.reach import Reach, is_public

PUBLIC = ["93.184.216.34", "1.1.1.1", "2606:2800:220:1::1", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]
PRIVATE = [
    "127.0.0.1", "127.255.0.9", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1", "169.254.169.254",
    "0.0.0.0", "0.1.2.3",  # noqa: S104
    "100.64.0.1", "192.0.0.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1",
    "2001:db8::1", "::ffff:127.0.0.1", "::ffff:192.168.1.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::1",
    "::127.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_all_others(address: str) -> None:
    assert not is_public(address)


def test_172_is_private_only_in_part() -> None:
    assert [is_public(f"172.{second}.0.1") for second in (15, 16, 31, 32)] == [True, False, False, True]


def test_what_the_user_named_is_reached_anywhere() -> None:
    typed, routed = Reach(), Reach.to(("NAS.lan", "10.0.0.7"), anywhere=False)
    assert typed.admits("nas.lan", "10.0.0.1")
    assert routed.admits("nas.LAN", "10.0.0.1")
    assert routed.admits("10.0.0.7", "10.0.0.7")
    assert not routed.admits("other.lan", "10.0.0.7")
    assert routed.admits("gateway.example", "1.1.1.1")
    assert not typed.names("nas.lan")
