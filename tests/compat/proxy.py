"""A connection that stops in the middle, exactly where a test wants it."""

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class StallingProxy:
    """Passes bytes on to an address; after so many bytes to it, holds everything back until it is released."""

    def __init__(self, target: str, limit_bytes: int) -> None:
        """`target` is a URL or a multiaddr of IPv4."""
        if target.startswith("/"):
            _, _, host, _, port = target.split("/")
            self._target = (host, int(port))
        else:
            parts = urlsplit(target)
            self._target = (str(parts.hostname), int(parts.port or 80))
        self._left_bytes = limit_bytes
        self._lock = threading.Lock()
        self._reached, self._released = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def wait(self) -> None:
        """Wait until it holds back."""
        assert self._reached.wait(120), "less was sent than the test thinks"

    def release(self) -> None:
        self._released.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)  # or the thread would go on waiting, and keep it open
        self._accepting.join(120)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with source, suppress(OSError):
            while data := source.recv(1 << 16):
                if counted:
                    self._hold(len(data))
                sink.sendall(data)
            for each in (source, sink):
                each.shutdown(socket.SHUT_RDWR)

    def _hold(self, size_bytes: int) -> None:
        with self._lock:
            self._left_bytes -= size_bytes
            over = self._left_bytes < 0
        if over:
            self._reached.set()
            self._released.wait(120)
