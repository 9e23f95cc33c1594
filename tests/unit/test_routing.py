"""Which multiaddrs name an HTTP server, and under which URL."""

import pytest

from cyberkv.cybergraph.peers.routing import gateway_of


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("/dns/a.example/https", "https://a.example"),
        ("/dns4/a.example/tcp/443/https", "https://a.example"),
        ("/dns4/A.example/tcp/8443/tls/http", "https://a.example:8443"),
        ("/dns6/a.example/tcp/80/http", "http://a.example"),
        ("/dns/a.example/tcp/443/http", "http://a.example:443"),
        ("/ip4/192.0.2.1/tcp/8080/http/p2p/12D3KooW", "http://192.0.2.1:8080"),
        ("/ip6/::1/tcp/80/http", "http://[::1]"),
        ("/ip6/2001:db8::1/tcp/443/tls/http", "https://[2001:db8::1]"),
        ("/dns4/a.example/tcp/443/tls/sni/a.example/http", "https://a.example"),
    ],
)
def test_an_http_server(address: str, url: str) -> None:
    assert gateway_of(address) == url


@pytest.mark.parametrize(
    "address",
    [
        "", "/", "dns4/a.example/tcp/80/http", "http://a.example", "/http", "/tcp/80/http", "/dns/a.example/tcp/80",
        "/dns/a.example/tcp/443/tls", "/dns/a.example/tcp/443/wss", "/ip4/192.0.2.1/tcp/80/ws",
        "/ip4/192.0.2.1/udp/4001/quic-v1", "/ip4/192.0.2.1/tcp/443/tls/sni/a.example/http",
        "/dns/a.example/tcp/443/tls/http/http-path/x", "/dns/a.example/ip4/192.0.2.1/tcp/80/http",
        "/dns//tcp/80/http", "/dns/a b/tcp/80/http", "/dns/user@a/tcp/80/http", "/dns/a?b/tcp/80/http",
        "/dns/a/tcp/99999/http", "/dns/a/tcp/x/http", "/dns/a/tcp/-1/http", "/ip6/zz/tcp/80/http", "/dns/[/tcp/80/http",
        "/ip4/192.0.2.1/tcp/80/http/p2p-circuit", "/dns/a\n/tcp/80/http",
        "/dns/a\x1b[31m/tcp/80/http", "/dns/b\u00fccher.example/tcp/80/http",
    ],
)  # fmt: skip
def test_anything_else(address: str) -> None:
    assert gateway_of(address) is None
