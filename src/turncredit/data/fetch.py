"""From the registry to files on this disk: mirrors first, one fetcher at a time, whole sources only.

A source is fetched into ``{downloads}/.{source}.partial`` and becomes ``{downloads}/{source}`` when every file of it is
there and checked; ``fetched.json`` inside says what each file is and how that is known. The folder of downloads is
itself a mirror: another machine may serve or share it as it is.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from filelock import FileLock, Timeout

from turncredit.data.download import (
    PATIENCE,
    Fetched,
    Patience,
    Piece,
    Wanted,
    digests,
    download,
    local_path,
    need_room,
)
from turncredit.data.sources import ENDPOINT, File, Registry, Source, offline, refuse_offline
from turncredit.errors import DataError
from turncredit.files import sha256, write_text, writing

log = logging.getLogger(__name__)

RECORD = "fetched.json"


def fetch(registry: Registry, names: Iterable[str], *, patience: Patience = PATIENCE, verify: bool = False) -> None:
    """Bring sources here, each whole; one that is here is left alone.

    Args:
        registry: what there is.
        names: of sources.
        patience: how long servers are waited for.
        verify: read what is here again and compare, instead of trusting its record.

    Raises:
        ConfigError: no such source.
        DataError: a source cannot be had, differs from what is expected, or does not fit on the disk.
    """
    wanted = {name: registry.source(name) for name in names}
    missing = [name for name in wanted if not is_here(registry, name)]
    need_room(Path(registry.downloads), sum(_to_come(registry, name) for name in missing))
    for name, source in wanted.items():
        folder = Path(registry.downloads, name)
        with _alone(folder):
            if not is_here(registry, name):
                log.info("%s: %s. Licence: %s", name, source.title, source.licence)
                (_snapshot if not source.files else _files)(registry, name, patience)
            elif verify:
                _verify(folder, source)
        log.info("%s: %s", name, folder)


def is_here(registry: Registry, name: str) -> bool:
    """Whether a source was fetched whole and its record still fits the registry; contents are not read again."""
    source, folder = registry.source(name), Path(registry.downloads, name)
    try:
        files = read_record(folder)["files"]
        place = Path(read_record(folder).get("folder", folder))
        return bool(files) and source.files.keys() <= files.keys() and all(
            (place / file).stat().st_size == entry["size"] and _fits(source.files.get(file), entry)
            for file, entry in files.items())
    except (DataError, OSError, KeyError, TypeError, AttributeError):
        return False


def fetched(registry: Registry, name: str, file: str) -> Path:
    """The path of a fetched file, after its bytes were compared with its record.

    Raises:
        ConfigError: no such source.
        DataError: it is not here, or it was altered.
    """
    registry.source(name)
    folder = Path(registry.downloads, name)
    path, recorded = folder / file, read_record(folder)["files"].get(file)
    if recorded is None or sha256(path) != recorded["sha256"]:
        raise DataError(f"{path}: differs from the sha256 in {RECORD}",
                        f"remove {folder} and fetch it again: turncredit fetch {name}")
    return path


def read_record(folder: Path) -> dict[str, Any]:
    """What ``fetched.json`` of a source says.

    Raises:
        DataError: the source is not here, or its record cannot be read.
    """
    path = folder / RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", f"fetch it: turncredit fetch {folder.name}") from error
    return record


def _fits(file: File | None, entry: dict[str, Any]) -> bool:
    """Whether a recorded file is the one that the registry means."""
    return file is None or (entry["size"] == (file.size or entry["size"])
                            and entry["sha256"] == (file.sha256 or entry["sha256"]))


def _to_come(registry: Registry, name: str) -> int:
    """Bytes of a source that are still to be downloaded, as far as known."""
    partial = Path(registry.downloads, f".{name}.partial")
    here = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file()) if partial.exists() else 0
    return max(0, registry.source(name).bytes - here)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the source while the block runs; a second fetcher waits."""
    path = folder.with_name(f".{folder.name}.lock")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("%s: another process fetches it; waiting", folder.name)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _files(registry: Registry, name: str, patience: Patience) -> None:
    """Fetch a source that is a list of files."""
    source, folder = registry.source(name), Path(registry.downloads, name)
    work = folder.with_name(f".{name}.partial")
    with writing(folder):
        if folder.exists() and not work.exists():  # without a fitting record: files put here by hand, or an old list
            folder.rename(work)
        work.mkdir(parents=True, exist_ok=True)
    with httpx.Client(follow_redirects=True) as http:
        known = _known(work)
        for file, entry in source.files.items():
            path = work / file
            if path.exists():
                known[file] = _accept(path, source.url(file), entry, known.get(file))
            else:
                ways = tuple(_ways(registry, name, file))
                if not ways:
                    refuse_offline(f"{name}/{file}")
                known[file] = download(Wanted(path, ways, entry.size, entry.sha256, entry.md5), http, patience)
            _write_record(work, source, known)
    with writing(folder):
        work.rename(folder)


def _known(work: Path) -> dict[str, Fetched]:
    """Files of an interrupted fetch that are finished."""
    if not (work / RECORD).exists():
        return {}
    return {file: Fetched(**entry) for file, entry in read_record(work)["files"].items()}


def _accept(path: Path, url: str, entry: File, known: Fetched | None) -> Fetched:
    """A file that is here already: of an interrupted fetch, or put here by hand.

    Raises:
        DataError: it is another file than the registry, or its record, says.
    """
    size, (sha, md5) = path.stat().st_size, digests(path, md5=entry.md5 is not None)
    expected = entry.sha256 or (known.sha256 if known else None)
    for what, found, should in (("bytes", size, entry.size), ("the sha256", sha, expected),
                                ("the md5", md5, entry.md5)):
        if should not in (None, found):
            raise DataError(f"{path}: has {what} {found}, not {should}", "remove it, and fetch it again")
    return known or Fetched(url, size, sha, "config/sources.yaml" if entry.sha256 or entry.md5 else
                            "seen when it was found here, compared with nothing")


def _ways(registry: Registry, name: str, file: str) -> Iterator[tuple[Piece, ...]]:
    """The mirror's file as a whole, then the publisher's, which may be in parts."""
    source = registry.sources[name]
    entry = source.files[file]
    if registry.mirror is not None:
        mirrored = f"{registry.mirror.rstrip('/')}/{name}/{file}"
        if local_path(mirrored) is not None or not offline():
            yield (Piece(mirrored, entry.size, entry.sha256),)
    if not offline():
        yield tuple(Piece(source.url(part), cut.size, cut.sha256) for part, cut in entry.parts.items()) or (
            Piece(source.url(file), entry.size, entry.sha256),)


def _write_record(work: Path, source: Source, files: dict[str, Fetched], **more: str) -> None:
    record = {"title": source.title, "licence": source.licence, "note": source.note, "repository": source.repository,
              "revision": source.revision, **more, "files": {file: asdict(entry) for file, entry in files.items()}}
    write_text(work / RECORD, json.dumps(record, indent=2) + "\n")


def _verify(folder: Path, source: Source) -> None:
    """Read every file of a source again.

    Raises:
        DataError: one differs from its record.
    """
    record = read_record(folder)
    for file, entry in record["files"].items():
        path = Path(record.get("folder", folder), file)
        _accept(path, entry["url"], source.files.get(file, File(sha256=entry["sha256"])), Fetched(**entry))


def _snapshot(registry: Registry, name: str, patience: Patience) -> None:
    """Fetch a whole repository into the hub library's own cache (HF_HOME), and record what came.

    The library names the blob of a large file by its sha256 but does not compare; here it is compared.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    source = registry.source(name)
    try:
        folder = Path(snapshot_download(
            source.repository, repo_type=source.kind, revision=source.revision, etag_timeout=patience.timeout_s,
            endpoint=os.environ.get(ENDPOINT), local_files_only=offline()))
    except LocalEntryNotFoundError as error:
        refuse_offline(f"{source.repository} at {source.revision or 'main'}")
        raise DataError(f"{source.repository}: cannot be fetched: {error}", "try again later") from error
    except (HfHubHTTPError, OfflineModeIsEnabled) as error:
        raise DataError(f"{source.repository}: cannot be fetched: {error}",
                        "check repository and revision in config/sources.yaml, or try again later") from error
    except OSError as error:
        raise DataError(f"{source.repository}: cannot be written: {error}",
                        "free some space, or choose another place: HF_HOME=...") from error
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        blob = path.resolve().name
        sha, named = sha256(path), len(blob) == 64
        if named and sha != blob:
            raise DataError(f"{path}: has the sha256 {sha}, not {blob}", f"remove {path.resolve()}, and fetch it again")
        files[path.relative_to(folder).as_posix()] = Fetched(
            source.repository, path.stat().st_size, sha, "named by the hub" if named else
            "seen at the first download, compared with nothing")
    _write_record(Path(registry.downloads, name), source, files, folder=str(folder), commit=folder.name)
