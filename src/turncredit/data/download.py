"""Downloads one file over HTTP, or copies it from a folder: resumed, checked, and under its name when complete.

Bytes go to a hidden sibling, ``.{name}.partial``, with a note on their origin. A download resumes at the last byte, in
a later process too, if the server shows that the file is unchanged, or if its sha256 is known. Otherwise it starts
over. A wrong length is an error before the body is read. Size and hashes are checked before the file gets its name.

No library keeps these guarantees for files of 60 GB: huggingface_hub 2 removes the partial file when its process ends,
and pooch requests a file from its first byte after every interruption. ``fetch`` leaves whole repositories to the hub's
library.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import httpx
from tqdm import tqdm

from turncredit.errors import DataError
from turncredit.files import sync, write_text, writing

log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_BUSY = (408, 425, 429)  # retried, like every 5xx
_SPARE = 1 << 28  # bytes that stay free on the disk


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes at one address: a whole file, or one part of it. None: not known."""

    url: str  # http(s)://, file:// or a path
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A file to download, and its alternatives: sequences of pieces to join. The first that works is taken."""

    path: Path
    alternatives: tuple[tuple[Piece, ...], ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait for a server."""

    timeout_s: float = 60.0  # without a byte
    retries: int = 8  # further attempts in a row that bring no new byte
    pause_s: float = 1.0  # before the first further attempt; doubles
    longest_pause_s: float = 120.0


RETRIES = RetryPolicy()


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a downloaded file is, and how that is known."""

    url: str
    size: int
    sha256: str
    known: str  # where the expected sha256 came from


class _Retry(Exception):
    """This attempt ended early; another may get further. ``pause``: seconds that the server asked for."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class _Unavailable(Exception):
    """This address does not have the requested file."""


@dataclass
class _Origin:
    """Where the last bytes of a partial file came from."""

    url: str = ""
    validator: str | None = None  # strong ETag of the server
    announced: str | None = None  # sha256 that the hub names for the file
    total: int | None = None  # bytes


@dataclass
class _Partial:
    """A growing file, and the note beside it."""

    path: Path
    origin: _Origin = field(default_factory=_Origin)

    @classmethod
    def of(cls, target: Path) -> _Partial:
        partial = cls(target.with_name(f".{target.name}.partial"))
        with suppress(OSError, ValueError, TypeError):  # no note, or a truncated one: the bytes are of unknown origin
            partial.origin = _Origin(**json.loads(partial.note.read_text(encoding="utf-8")))
        return partial

    @property
    def note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def restart(self, size: int, origin: _Origin) -> None:
        """Keep the first ``size`` bytes; the next ones come from ``origin``."""
        self.truncate(size)
        self.origin = origin
        write_text(self.note, json.dumps(asdict(origin)) + "\n")

    def truncate(self, size: int) -> None:
        with self.path.open("ab") as file:
            file.truncate(size)

    def publish(self, target: Path) -> None:
        sync(self.path)
        self.path.replace(target)
        self.note.unlink(missing_ok=True)


def download(request: FileRequest, http: httpx.Client, policy: RetryPolicy = RETRIES) -> FileRecord:
    """Download a file; resume an interrupted download of the same file.

    Raises:
        DataError: no alternative has the file, it differs from what is expected, or the disk is full. Nothing has the
            file's name then. The bytes received so far are kept for the next call unless they are wrong.
    """
    partial = _Partial.of(request.path)
    reasons = []
    for pieces in request.alternatives:
        try:
            with writing(request.path):
                request.path.parent.mkdir(parents=True, exist_ok=True)
                # Pieces before the one that was interrupted are complete and checked.
                first = next((n for n, piece in enumerate(pieces) if piece.url == partial.origin.url), 0)
                for number in range(first, len(pieces)):
                    start = sum(piece.size or 0 for piece in pieces[:number])
                    sha = _Transfer(pieces[number], start, partial, http, policy).run()
                record = _check(request, pieces, partial, sha if len(pieces) == 1 else None)
                partial.publish(request.path)
                return record
        except _Unavailable as reason:
            reasons.append(str(reason))
            log.warning("%s", reason)
    raise DataError(f"{request.path}: cannot be fetched: " + ("; ".join(reasons) or "no address is known"),
                    "try again later (the download resumes), or name a mirror or a folder that has it: "
                    "TURNCREDIT_MIRROR=...")


def file_hash(path: Path, algorithm: str, start: int = 0) -> str:
    """Hex digest of a file's bytes from ``start`` on; ``algorithm`` is "sha256" or "md5"."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def check_disk_space(folder: Path, size: int) -> None:
    """Check that ``size`` bytes, and some to spare, are free for ``folder``, which need not exist yet.

    Raises:
        DataError: they are not.
    """
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if size and size + _SPARE > free:
        raise DataError(f"{folder}: {size / 1e9:.1f} GB to download and {free / 1e9:.1f} GB free",
                        "free some space, or choose another folder: TURNCREDIT_DOWNLOADS=...")


def local_path(url: str) -> Path | None:
    """The path that an address names on this machine; None for http(s)."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in {"http", "https"} else Path(url)


def _check(request: FileRequest, pieces: Sequence[Piece], partial: _Partial, sha: str | None) -> FileRecord:
    """Compare the complete file with what is expected, and remove a wrong one. ``sha``: its sha256, if computed."""
    sha = sha or file_hash(partial.path, "sha256")
    md5 = file_hash(partial.path, "md5") if request.md5 else None
    announced = partial.origin.announced if len(pieces) == 1 else None
    size = partial.size
    for what, actual, expected in (("bytes", size, request.size), ("the sha256", sha, request.sha256 or announced),
                                   ("the md5", md5, request.md5)):
        if expected is not None and actual != expected:
            partial.truncate(0)
            raise _Unavailable(f"{pieces[0].url}: has {what} {actual}, not {expected}")
    known = ("config/sources.yaml" if request.sha256 else "named by the server" if announced else
             "of the md5 in config/sources.yaml" if md5 else "seen at the first download, compared with nothing")
    return FileRecord(pieces[0].url, size, sha, known)


@dataclass
class _Transfer:
    """Brings one piece into the partial file, behind the ``start`` bytes of earlier pieces."""

    piece: Piece
    start: int
    partial: _Partial
    http: httpx.Client
    policy: RetryPolicy
    resumed: bool = False

    def run(self) -> str:
        """Bring the piece in, complete and checked; returns its sha256."""
        while True:
            self.resumed = False
            (self._copy if local_path(self.piece.url) is not None else self._download)()
            sha = file_hash(self.partial.path, "sha256", self.start)
            expected = self.piece.sha256 or self.partial.origin.announced
            if self.piece.size not in (None, self.have):
                wrong = f"has {self.have} bytes, not {self.piece.size}"
            elif expected not in (None, sha):
                wrong = f"has the sha256 {sha}, not {expected}"
            else:
                return sha
            self.partial.truncate(self.start)
            if not self.resumed:
                raise _Unavailable(f"{self.piece.url}: {wrong}")
            log.warning("%s: %s after resuming; starts over", self.piece.url, wrong)

    @property
    def have(self) -> int:
        """Number of bytes of this piece in the partial file."""
        return max(0, self.partial.size - self.start) if self.partial.origin.url == self.piece.url else 0

    def _copy(self) -> None:
        source = local_path(self.piece.url)
        assert source is not None
        try:
            file = source.open("rb")
        except OSError as error:
            raise _Unavailable(f"{source}: {error.strerror}") from error
        with file:
            total = source.stat().st_size
            check_disk_space(self.partial.path.parent, total)
            self.partial.restart(self.start, _Origin(self.piece.url, total=total))
            self._append(iter(lambda: file.read(_CHUNK), b""), total)

    def _download(self) -> None:
        """Attempt the download until ``policy.retries`` further attempts in a row have brought no new byte."""
        most, failures = self.have, 0
        while True:
            try:
                return self._attempt()
            except (_Retry, httpx.RequestError, httpx.InvalidURL) as error:
                failures = 0 if self.have > most else failures + 1
                most = max(most, self.have)
                said = str(error) if isinstance(error, _Retry) else f"{type(error).__name__} {error}".strip()
                if not isinstance(error, _Retry | httpx.TransportError):
                    raise _Unavailable(f"{self.piece.url}: {said}") from error
                if failures > self.policy.retries:
                    raise _Unavailable(f"{self.piece.url}: {said}; {failures} tries brought no new byte") from error
                log.info("%s: %s; again from byte %d", self.piece.url, said, self.have)
                pause = max(getattr(error, "pause", 0.0), self.policy.pause_s * 2 ** max(0, failures - 1))
                time.sleep(min(pause, self.policy.longest_pause_s))

    def _attempt(self) -> None:
        origin, have = self.partial.origin, self.have
        if have and have == (self.piece.size or origin.total):
            self.resumed = True
            return
        headers = {"Accept-Encoding": "identity"}  # the file's own bytes
        if have and (origin.validator or self.piece.sha256):
            headers["Range"] = f"bytes={have}-"
            if origin.validator:
                headers["If-Range"] = origin.validator
        with self.http.stream("GET", self.piece.url, headers=headers, timeout=self.policy.timeout_s) as answer:
            self._refuse(answer)
            fresh = self._describe(answer)
            if answer.status_code == 206 and "Range" in headers:
                if not self._continues(answer, fresh):
                    self.partial.restart(self.start, _Origin(self.piece.url))
                    raise _Retry("the file has changed since the last attempt")
                self.resumed = True
            elif answer.status_code == 200:
                have = 0
                self.partial.restart(self.start, fresh)
            else:
                raise _Unavailable(f"{self.piece.url}: unexpected HTTP {answer.status_code}")
            check_disk_space(self.partial.path.parent, (fresh.total or have) - have)
            self._append(answer.iter_raw(), fresh.total)  # unbuffered: an interruption loses no received byte
        total = fresh.total or self.piece.size
        if total is not None and self.have < total:
            raise _Retry(f"ended at {self.have} of {total} bytes")

    def _refuse(self, answer: httpx.Response) -> None:
        """Raise unless the answer is the file or a range of it."""
        status = answer.status_code
        if status == 416:
            self.partial.restart(self.start, _Origin(self.piece.url))
            raise _Retry("the file is shorter than at the last attempt")
        if status in _BUSY or status >= 500:
            seconds = answer.headers.get("Retry-After", "")
            raise _Retry(f"HTTP {status}", float(seconds) if seconds.isdigit() else 0.0)
        if status >= 300:
            raise _Unavailable(f"{self.piece.url}: HTTP {status}")
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            raise _Unavailable(f"{self.piece.url}: answers with a web page, not with the file")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise _Unavailable(f"{self.piece.url}: answers packed as {answer.headers['Content-Encoding']}")

    def _describe(self, answer: httpx.Response) -> _Origin:
        """Size and validators that the server reports; a wrong length is an error before the body is read."""
        ranged = answer.status_code == 206
        length = answer.headers.get("Content-Range" if ranged else "Content-Length", "").rpartition("/")[2]
        total = int(length) if length.isdigit() else None
        if None not in (total, self.piece.size) and total != self.piece.size:
            raise _Unavailable(f"{self.piece.url}: has {total} bytes, not {self.piece.size}")
        etag = answer.headers.get("ETag")
        linked = [r.headers.get("X-Linked-Etag", "").strip('"') for r in (*answer.history, answer)]
        announced = next((tag for tag in linked if re.fullmatch("[0-9a-f]{64}", tag)), None)
        return _Origin(self.piece.url, None if etag is None or etag.startswith("W/") else etag, announced, total)

    def _continues(self, answer: httpx.Response, fresh: _Origin) -> bool:
        """Whether a range continues exactly the bytes in the partial file."""
        begins = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        old = self.partial.origin
        return (begins is not None and int(begins[1]) == self.have
                and (old.validator is None or fresh.validator in (None, old.validator))
                and (old.total is None or fresh.total in (None, old.total)))

    def _append(self, chunks: Iterable[bytes], total: int | None) -> None:
        with (self.partial.path.open("ab") as file,
              tqdm(total=total, initial=self.have, unit="B", unit_scale=True, desc=self.piece.url.rpartition("/")[2],
                   mininterval=0.5 if sys.stderr.isatty() else 30, leave=False) as bar):
            _write(chunks, file, bar.update)


def _write(chunks: Iterable[bytes], file: BinaryIO, advance: Callable[[int], Any]) -> None:
    for chunk in chunks:
        file.write(chunk)
        advance(len(chunk))
