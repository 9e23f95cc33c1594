"""Which machines may be contacted: what a stranger names must not lead into the network of the reader.

What a user typed is asked wherever it is. What a router or a redirect named is asked in the public internet only, or
on hosts that the user allowed by name.

>>> strangers = Reach(anywhere=False, hosts=frozenset({"nas.lan"}))
>>> strangers.admits("gateway.example", "10.0.0.1"), strangers.admits("nas.lan", "10.0.0.1")
(False, True)
"""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from ..errors import BadReference

_NAT64: Final = ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Reach:
    """Where connections may lead."""

    anywhere: bool = True
    """Whether the host itself was named by the user, so that its address does not matter."""
    hosts: frozenset[str] = frozenset()
    """Hosts that were allowed by name, in lower case."""

    @classmethod
    def to(cls, hosts: "tuple[str, ...]", *, anywhere: bool = True) -> "Reach":
        """Allow hosts: names or addresses, without a port. Raises `BadReference` for what is neither."""
        for host in hosts:
            if not host or any(char in "/@[]" or not char.isprintable() or char.isspace() for char in host):
                raise BadReference(
                    f"not a host: {host!r:.80}",
                    hint="give a name or an address, without scheme and port",
                    got=host[:80],
                )
        return cls(anywhere, frozenset(host.lower() for host in hosts))

    def names(self, host: str) -> bool:
        """Say whether the user allowed a host by name."""
        return host.lower() in self.hosts

    def admits(self, host: str, address: str) -> bool:
        """Say whether a connection for `host` may go to `address`, which its name stands for at this moment."""
        return self.anywhere or self.names(host) or is_public(address)


ANYWHERE: Final = Reach()


def is_public(address: str) -> bool:
    """Say whether an IP address belongs to the public internet; one that is hidden in another counts as itself.

    >>> [is_public(each) for each in ("93.184.216.34", "127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "fe80::1%en0")]
    [True, False, False, False, False]
    """
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        hidden = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            hidden = ip_address(int(ip) & 0xFFFFFFFF)  # type: ignore[assignment]
        if hidden is not None:
            return is_public(str(hidden))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved
