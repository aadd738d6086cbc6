"""A file server on the loopback that misbehaves on demand, for tests of downloads."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Fault:
    """What one answer does wrong; a file's faults are used up one a request."""

    status: int | None = None  # instead of the file
    cut: int | None = None  # the connection ends after so many bytes of the body
    sleep: float = 0.0  # before the first byte
    body: bytes | None = None  # another file from now on
    no_range: bool = False  # answers a range with the whole file
    no_length: bool = False  # the end of the connection is the end of the file
    headers: dict[str, str] = field(default_factory=dict)  # added, or in place of the usual ones
    ignore_if_range: bool = False  # continues whatever file is there now


@dataclass
class FileServer:
    """Files by their paths, faults to come, and the requests seen."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    etags: bool = True
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0  # bytes of bodies
    repository: dict[str, tuple[bytes, str, str]] = field(default_factory=dict)  # like the hub: body, ETag, commit

    def asked(self, path: str) -> list[str]:
        """The ranges that were asked of a file, "" for the whole."""
        return [headers.get("Range", "") for name, headers in self.seen if name == path]

    def publish(self, folder: Path, under: str = "") -> None:
        """Serve the files of a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.files[f"/{under}{path.relative_to(folder).as_posix()}"] = path.read_bytes()


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


@contextmanager
def serving() -> Iterator[FileServer]:
    """A server on a free port of the loopback, as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if self.path in state.repository:
                self.answer_like_the_hub(*state.repository[self.path])
                return
            state.seen.append((self.path, dict(self.headers)))
            queue = state.faults.get(self.path, [])
            fault = queue.pop(0) if queue else Fault()
            if fault.body is not None:
                state.files[self.path] = fault.body
            time.sleep(fault.sleep)
            body = state.files.get(self.path)
            status = fault.status or (200 if body is not None else 404)
            if fault.status is not None or body is None:
                body = f"HTTP {status}".encode()
            headers = {"Content-Type": "application/octet-stream"}
            if state.etags and status == 200:
                headers["ETag"] = etag(body)
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            same = fault.ignore_if_range or self.headers.get("If-Range", headers.get("ETag")) == headers.get("ETag")
            if asked and status == 200 and same and not fault.no_range:
                start, total = int(asked[1]), len(body)
                status, body = (206, body[start:]) if start < total else (416, b"")
                headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}" if body else f"bytes */{total}"
            if not fault.no_length:
                headers["Content-Length"] = str(len(body))
            else:
                headers["Connection"] = "close"
            self.send_response(status)
            for name, value in (headers | fault.headers).items():
                self.send_header(name, value)
            self.end_headers()
            whole = len(body) if fault.cut is None else min(fault.cut, len(body))
            self.wfile.write(body[:whole])
            state.sent += whole
            if fault.cut is not None or fault.no_length:
                self.wfile.flush()
                self.close_connection = True

        def answer_like_the_hub(self, body: bytes, tag: str, commit: str) -> None:
            self.send_response(200)
            for name, value in {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients that hang up are no fault here."""

    server = Server(("127.0.0.1", 0), Handler)
    state = FileServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
