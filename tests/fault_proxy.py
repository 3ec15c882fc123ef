"""A proxy before the S3 server that injects faults by a script: what networks and busy stores do.

It answers with an error instead of asking the server, breaks connections before or after the
server has done what was asked, keeps them open without an answer, cuts bodies half-way, and
changes bytes of them.

It lets one completion of a multipart upload through at a time: S3 looks at the completion's
condition and completes in one, SeaweedFS first looks and then completes.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

Kind = Literal[
    "access_denied",
    "changed_byte",
    "cut_body",
    "hang",
    "internal_error",
    "lost_answer",
    "reset",
    "slow_down",
    "unavailable",
]
_ERRORS = {
    "access_denied": (403, "AccessDenied"),
    "slow_down": (503, "SlowDown"),
    "unavailable": (503, "ServiceUnavailable"),
    "internal_error": (500, "InternalError"),
}
REQUEST_ID = "of-the-proxy"
_UPSTREAM_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to requests that match: to each `every`-th of them, the first among these."""

    kind: Kind
    method: str = ""
    """Empty: any."""
    contains: str = ""
    """Part of the request's path and query."""
    times: int = 1
    every: int = 1


class FaultProxy:
    """A running proxy: `url` is its endpoint, `requests` what it was asked for."""

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint)
        self.requests: list[tuple[str, str, str]] = []
        """(method, path and query, Range)."""
        self.injected: Counter[str] = Counter()
        """Faults so far, by kind."""
        self._matched: Counter[Fault] = Counter()
        self._done: Counter[Fault] = Counter()
        self._faults: tuple[Fault, ...] = ()
        self.completion = threading.Lock()
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._open: set[socket.socket] = set()
        proxy = self

        class Handler(_Handler):
            def setup(self) -> None:
                self.proxy = proxy
                proxy._open.add(self.request)
                super().setup()

            def finish(self) -> None:
                proxy._open.discard(self.request)
                super().finish()

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def script(self, *faults: Fault) -> None:
        """Inject these from now on, no others."""
        with self._lock:
            self._faults = faults
            self._matched.clear()
            self._done.clear()
            self._released.set()
            self._released = threading.Event()

    def release(self) -> None:
        """End the connections that hang."""
        self._released.set()

    def close(self) -> None:
        """Stop, whoever is still connected."""
        self.release()
        self._server.shutdown()
        self._thread.join()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def note(self, method: str, target: str, span: str) -> tuple[str, threading.Event]:
        """Write a request down; returns the fault that is its lot, "" for none."""
        with self._lock:
            self.requests.append((method, target, span))
            for fault in self._faults:
                if fault.method not in ("", method) or fault.contains not in target:
                    continue
                if self._done[fault] == fault.times:
                    continue
                self._matched[fault] += 1
                if (self._matched[fault] - 1) % fault.every == 0:
                    self._done[fault] += 1
                    self.injected[fault.kind] += 1
                    return fault.kind, self._released
            return "", self._released


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Be silent: clients that go away are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the other side's word on its head
    proxy: FaultProxy

    def log_message(self, *_: object) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault, released = self.proxy.note(self.command, self.path, self.headers.get("Range", ""))
        if fault in _ERRORS:
            self._refuse(*_ERRORS[fault])
        elif fault == "reset":
            self._reset()
        elif fault == "hang":
            released.wait()
            self._reset()
        else:
            self._forward(body, fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server looks for these

    def _refuse(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Busy</Message></Error>"
        data = b"" if self.command == "HEAD" else body.encode()
        self.send_response(status)
        self.send_header("x-amz-request-id", REQUEST_ID)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        # No lingering: the other side gets an RST, as from a machine that went down.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _forward(self, body: bytes, fault: str) -> None:
        upstream = self.proxy.upstream
        server = http.client.HTTPConnection(
            str(upstream.hostname), upstream.port, timeout=_UPSTREAM_SECONDS
        )
        try:
            # The Host header as it came: it is part of what is signed.
            headers = {
                name: value for name, value in self.headers.items() if name.lower() != "expect"
            }
            completes = self.command == "POST" and "uploadId" in self.path
            with self.proxy.completion if completes else nullcontext():
                server.request(self.command, self.path, body or None, headers)
                answer = server.getresponse()
                data = answer.read()
        finally:
            server.close()
        if fault == "lost_answer":
            self._reset()
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", size or "0")
        self.end_headers()
        if fault == "cut_body":
            data = data[: len(data) // 2]
            self.close_connection = True
        if fault == "changed_byte":
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        self.wfile.write(data)


@contextmanager
def fault_proxy(endpoint: str) -> Iterator[FaultProxy]:
    """Run a proxy before an S3 endpoint; it injects nothing until it has a script."""
    proxy = FaultProxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.close()
