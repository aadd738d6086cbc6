"""One file from one or more addresses: resumed, checked, and there under its name only when it is whole.

Bytes go to a hidden sibling, ``.{name}.partial``, beside a note of where they came from. A cut-off download goes on
from the last byte only where the server shows that the file is the same one, or where a known sha256 will tell; else
it begins again. Size and sha256 are checked before the file takes its name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type
from tqdm import tqdm

from turncredit.errors import DataError
from turncredit.files import sync, write_text, writing

log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_BUSY = (408, 425, 429)  # and every 5xx: another attempt may succeed
_SPARE = 1 << 28  # bytes that stay free on the disk


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of one address; what is None is not known."""

    url: str  # http(s)://, file:// or a path
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file, and the ways to get it: each a row of pieces that are joined. The first that has the file is taken."""

    path: Path
    ways: tuple[tuple[Piece, ...], ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for."""

    timeout_s: float = 60.0  # without a byte
    retries: int = 8  # attempts in a row that bring no new byte
    pause_s: float = 1.0  # before the first further attempt; doubles
    longest_pause_s: float = 120.0


PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a file is, and how that is known."""

    url: str
    size: int
    sha256: str
    known: str  # where the expected sha256 came from


@dataclass
class _Note:
    """Where the bytes of a partial file came from; kept beside it."""

    url: str = ""
    validator: str | None = None  # strong ETag of the server
    announced: str | None = None  # sha256 that the hub names for the file
    total: int | None = None


class _Again(Exception):
    """This attempt ended early; another may go further. ``pause``: seconds that the server asked for."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class _Unavailable(Exception):
    """This address does not have the file that is wanted."""


@dataclass
class _Partial:
    """The growing file."""

    path: Path
    note: _Note = field(default_factory=_Note)

    @classmethod
    def of(cls, wanted: Path) -> _Partial:
        path = wanted.parent / f".{wanted.name}.partial"
        try:
            return cls(path, _Note(**json.loads(cls._beside(path).read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):  # no note, or one cut short: nothing can be told of the bytes
            return cls(path)

    @staticmethod
    def _beside(path: Path) -> Path:
        return path.with_name(f"{path.name}.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def remember(self, note: _Note) -> None:
        self.note = note
        write_text(self._beside(self.path), json.dumps(asdict(note)) + "\n")

    def cut(self, size: int) -> None:
        """Keep the first ``size`` bytes."""
        with self.path.open("ab") as file:
            file.truncate(size)

    def become(self, path: Path) -> None:
        sync(self.path)
        self.path.replace(path)
        self._beside(self.path).unlink(missing_ok=True)


def download(wanted: Wanted, http: httpx.Client, patience: Patience = PATIENCE) -> Fetched:
    """Get a file, or say why not; an interrupted download of the same file goes on.

    Raises:
        DataError: no way has the file, it differs from what is expected, or the disk is full. Nothing stands
            under the file's name then; the bytes that came are kept for the next try unless they are wrong.
    """
    partial = _Partial.of(wanted.path)
    reasons = []
    for way in wanted.ways:
        try:
            with writing(wanted.path):
                wanted.path.parent.mkdir(parents=True, exist_ok=True)
                for number in range(_first(way, partial), len(way)):
                    start = sum(piece.size or 0 for piece in way[:number])
                    sha = _Piecewise(way[number], start, partial, http, patience).fetch()
                fetched = _examine(wanted, way, partial, sha if len(way) == 1 else None)
                partial.become(wanted.path)
                return fetched
        except _Unavailable as reason:
            reasons.append(str(reason))
            log.warning("%s", reason)
    raise DataError(f"{wanted.path}: cannot be fetched: " + ("; ".join(reasons) or "no address is known"),
                    "try again later (it goes on where it stopped), or name a mirror or a folder that has it: "
                    "TURNCREDIT_MIRROR=...")


def digests(path: Path, start: int = 0, *, md5: bool = False) -> tuple[str, str]:
    """(sha256, md5 or "") of a file's bytes from ``start`` on."""
    sha, other = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            if md5:
                other.update(chunk)
    return sha.hexdigest(), other.hexdigest() if md5 else ""


def need_room(folder: Path, size: int) -> None:
    """Refuse to begin what the disk cannot take; the folder need not be there yet.

    Raises:
        DataError: fewer than ``size`` bytes, and some to spare, are free.
    """
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if size and size + _SPARE > free:
        raise DataError(f"{folder}: {size / 1e9:.1f} GB are to come and {free / 1e9:.1f} GB are free",
                        "free some space, or choose another place: TURNCREDIT_DOWNLOADS=...")


def local_path(url: str) -> Path | None:
    """The path that an address names on this machine, or None for one of the network."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in {"http", "https"} else Path(url)


def _first(way: Sequence[Piece], partial: _Partial) -> int:
    """The piece that the partial file is in; earlier ones were checked when they ended."""
    return next((n for n, piece in enumerate(way) if piece.url == partial.note.url), 0)


def _examine(wanted: Wanted, way: Sequence[Piece], partial: _Partial, sha: str | None) -> Fetched:
    """Compare the whole file with what is expected; a wrong one is removed. ``sha``: where it is known already."""
    size, md5 = partial.size, ""
    if sha is None or wanted.md5 is not None:
        sha, md5 = digests(partial.path, md5=wanted.md5 is not None)
    announced = partial.note.announced if len(way) == 1 else None
    for what, is_, expected in (("bytes", size, wanted.size), ("the sha256", sha, wanted.sha256 or announced),
                                ("the md5", md5, wanted.md5)):
        if expected is not None and is_ != expected:
            partial.cut(0)
            raise _Unavailable(f"{way[0].url}: has {what} {is_}, not {expected}")
    known = ("config/sources.yaml" if wanted.sha256 else "named by the server" if announced else
             "of the md5 in config/sources.yaml" if wanted.md5 else "seen at the first download, compared with nothing")
    return Fetched(way[0].url, size, sha, known)


@dataclass
class _Piecewise:
    """One piece on its way into the partial file, which has ``start`` bytes of earlier pieces."""

    piece: Piece
    start: int
    partial: _Partial
    http: httpx.Client
    patience: Patience
    resumed: bool = False

    def fetch(self) -> str:
        """Bring the piece in, whole and checked, and give its sha256."""
        while True:
            self.resumed = False
            (self._copy if local_path(self.piece.url) is not None else self._download)()
            found = digests(self.partial.path, self.start)[0]
            expected = self.piece.sha256 or self.partial.note.announced
            if self.piece.size not in (None, self.have):
                wrong = f"has {self.have} bytes, not {self.piece.size}"
            elif expected not in (None, found):
                wrong = f"has the sha256 {found}, not {expected}"
            else:
                return found
            self.partial.cut(self.start)
            if not self.resumed:
                raise _Unavailable(f"{self.piece.url}: {wrong}")
            log.warning("%s: %s after going on from an earlier try; from the beginning", self.piece.url, wrong)

    @property
    def have(self) -> int:
        """Bytes of this piece that are here."""
        mine = self.partial.note.url == self.piece.url
        return max(0, self.partial.size - self.start) if mine else 0

    def _begin(self, note: _Note) -> None:
        """From the piece's first byte."""
        self.partial.cut(self.start)
        self.partial.remember(note)

    def _copy(self) -> None:
        source = local_path(self.piece.url)
        assert source is not None
        try:
            file = source.open("rb")
        except OSError as error:
            raise _Unavailable(f"{source}: {error.strerror}") from error
        with file:
            total = source.stat().st_size
            need_room(self.partial.path.parent, total)
            self._begin(_Note(self.piece.url, total=total))
            self._append(iter(lambda: file.read(_CHUNK), b""), total)

    def _download(self) -> None:
        most, stalled = self.have, 0  # bytes that were here at best; attempts since that brought none

        def attempt() -> None:
            nonlocal most, stalled
            try:
                self._attempt()
            finally:
                most, stalled = max(most, self.have), 0 if self.have > most else stalled + 1

        def pause(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.pause if isinstance(error, _Again) else 0.0
            return min(max(asked, self.patience.pause_s * 2 ** max(0, stalled - 1)), self.patience.longest_pause_s)

        def tell(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            log.info("%s: %s; again from byte %d", self.piece.url, _said(error), self.have)

        try:
            Retrying(stop=lambda _: stalled > self.patience.retries, wait=pause, before_sleep=tell, reraise=True,
                     retry=retry_if_exception_type((_Again, httpx.TransportError)))(attempt)
        except (_Again, httpx.TransportError) as error:
            raise _Unavailable(f"{self.piece.url}: {_said(error)}; {stalled} tries brought no new byte") from error
        except (httpx.InvalidURL, httpx.RequestError) as error:
            raise _Unavailable(f"{self.piece.url}: {_said(error)}") from error

    def _attempt(self) -> None:
        note, have = self.partial.note, self.have
        if have and have == (self.piece.size or note.total):
            self.resumed = True
            return
        headers = {"Accept-Encoding": "identity"}  # the bytes as they are, not packed on the way
        if have and (note.validator or self.piece.sha256):
            headers["Range"] = f"bytes={have}-"
            if note.validator:
                headers["If-Range"] = note.validator
        with self.http.stream("GET", self.piece.url, headers=headers, timeout=self.patience.timeout_s) as answer:
            self._refuse(answer)
            fresh = self._describe(answer)
            if answer.status_code != 206 or "Range" not in headers:
                if answer.status_code != 200:
                    raise _Unavailable(f"{self.piece.url}: HTTP {answer.status_code}, which was not asked for")
                have = 0
                self._begin(fresh)
            elif not self._goes_on(answer, fresh):
                self._begin(_Note(self.piece.url))
                raise _Again("the file is another one than at the last try")
            else:
                self.resumed = True
            need_room(self.partial.path.parent, (fresh.total or have) - have)
            self._append(answer.iter_raw(), fresh.total)  # as it comes: a cut-off loses nothing that arrived
        whole = fresh.total or self.piece.size
        if whole is not None and self.have < whole:
            raise _Again(f"ended at {self.have} of {whole} bytes")

    def _refuse(self, answer: httpx.Response) -> None:
        """Raise unless the answer is the file or a part of it."""
        status = answer.status_code
        if status == 416:  # the file is shorter now than what is here
            self._begin(_Note(self.piece.url))
            raise _Again("the file is shorter than at the last try")
        if status in _BUSY or status >= 500:
            asked = answer.headers.get("Retry-After", "")
            raise _Again(f"HTTP {status}", float(asked) if asked.isdigit() else 0.0)
        if status >= 300:
            raise _Unavailable(f"{self.piece.url}: HTTP {status}")
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            raise _Unavailable(f"{self.piece.url}: answers with a web page, not with the file")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise _Unavailable(f"{self.piece.url}: answers packed as {answer.headers['Content-Encoding']}")

    def _describe(self, answer: httpx.Response) -> _Note:
        """What the server says of the file; a wrong length is refused before any byte of it is read."""
        total: int | None = None
        if answer.status_code == 206:
            end = answer.headers.get("Content-Range", "").rpartition("/")[2]
            total = int(end) if end.isdigit() else None
        elif answer.headers.get("Content-Length", "").isdigit():
            total = int(answer.headers["Content-Length"])
        if None not in (total, self.piece.size) and total != self.piece.size:
            raise _Unavailable(f"{self.piece.url}: has {total} bytes, not {self.piece.size}")
        etag = answer.headers.get("ETag")
        linked = [r.headers.get("X-Linked-Etag", "").strip('"') for r in (*answer.history, answer)]
        announced = next((tag for tag in linked if re.fullmatch("[0-9a-f]{64}", tag)), None)
        return _Note(self.piece.url, None if etag is None or etag.startswith("W/") else etag, announced, total)

    def _goes_on(self, answer: httpx.Response, fresh: _Note) -> bool:
        """Whether a partial answer continues exactly what is here."""
        begins = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        old = self.partial.note
        return (begins is not None and int(begins[1]) == self.have
                and (old.validator is None or fresh.validator in (None, old.validator))
                and (old.total is None or fresh.total in (None, old.total)))

    def _append(self, chunks: Iterable[bytes], total: int | None) -> None:
        with (self.partial.path.open("ab") as file,
              tqdm(total=total, initial=self.have, unit="B", unit_scale=True, desc=self.piece.url.rpartition("/")[2],
                   mininterval=0.5 if sys.stderr.isatty() else 30, leave=False) as bar):
            _pour(chunks, file, bar.update)


def _pour(chunks: Iterable[bytes], file: BinaryIO, told: Callable[[int], Any]) -> None:
    for chunk in chunks:
        file.write(chunk)
        told(len(chunk))


def _said(error: BaseException | None) -> str:
    """What an error says, and its kind where it says nothing."""
    return str(error) if isinstance(error, _Again) else f"{type(error).__name__} {error}".strip()
