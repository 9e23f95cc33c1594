"""Certificates and keys: what is refused, and the name that a server is known by."""

from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from cyberkv.cybergraph.errors import BadReference, Refused
from cyberkv.cybergraph.gateway.tls import Certificate, TlsServer
from tests.compat.certificate import make_certificate
from tests.wire.test_gateway_limits import hello


def test_a_key_that_others_can_read_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(files[1].read_bytes())
    for mode, allowed in ((0o600, True), (0o640, True), (0o400, True), (0o644, False), (0o604, False), (0o602, False)):
        key.chmod(mode)
        if allowed:
            Certificate(files[0], key)
        else:
            with pytest.raises(Refused, match="anybody"):
                Certificate(files[0], key)


def test_files_that_do_not_fit(files: tuple[Path, Path], tmp_path: Path) -> None:
    other_cert, other_key = make_certificate(tmp_path)
    empty, locked = tmp_path / "empty.pem", tmp_path / "locked.pem"
    empty.touch(0o600)
    locked.touch(0o600)
    key = serialization.load_pem_private_key(files[1].read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    for cert_file, key_file in (
        (files[0], other_key), (other_cert, files[1]), (files[1], files[0]), (files[0], empty), (empty, files[1]),
        (files[0], tmp_path / "none"), (tmp_path / "none", files[1]), (files[0], locked), (tmp_path, files[1]),
    ):  # fmt: skip
        with pytest.raises((BadReference, Refused)):
            Certificate(cert_file, key_file)


def test_listening_everywhere_it_is_known_by_the_name_in_its_certificate(files: tuple[Path, Path]) -> None:
    certificate = Certificate(*files)
    for host, shown in (("0.0.0.0", "https://localhost:"), ("127.0.0.1", "https://127.0.0.1:")):  # noqa: S104
        server = TlsServer(hello, host, 0, partial(print), certificate)
        with server._socket:
            assert server.url.startswith(shown)
