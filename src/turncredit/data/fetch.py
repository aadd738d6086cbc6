"""Fetches sources of the registry: mirrors first, one process at a time, and only complete sources.

A source is fetched into ``{downloads}/.{source}.partial``, which is renamed to ``{downloads}/{source}`` when every file
is there and checked. ``fetched.json`` in it records each file and how its hash is known. huggingface_hub fetches whole
repositories into its own cache. The download folder can serve as a mirror for another machine as it is.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from filelock import FileLock, Timeout

from turncredit.data.download import (
    RETRIES,
    FileRecord,
    FileRequest,
    Piece,
    RetryPolicy,
    check_disk_space,
    download,
    file_hash,
    local_path,
)
from turncredit.data.sources import ENDPOINT, File, Registry, Source, offline, refuse_offline
from turncredit.errors import DataError
from turncredit.files import sha256, write_text, writing

log = logging.getLogger(__name__)

RECORD = "fetched.json"


def fetch(registry: Registry, names: Iterable[str], *, policy: RetryPolicy = RETRIES, verify: bool = False) -> None:
    """Fetch the sources that are not downloaded yet.

    Args:
        registry: all sources.
        names: sources to fetch, as in config/sources.yaml.
        policy: how long to wait for servers.
        verify: also read the files of fetched sources again and compare them, instead of trusting their records.

    Raises:
        ConfigError: unknown source.
        DataError: a source cannot be fetched, differs from what is expected, or does not fit on the disk.
    """
    sources = {name: registry.source(name) for name in names}
    missing = [name for name in sources if not is_fetched(registry, name)]
    check_disk_space(Path(registry.downloads), sum(_bytes_left(registry, name) for name in missing))
    for name, source in sources.items():
        folder = Path(registry.downloads, name)
        with _exclusive(folder):
            if not is_fetched(registry, name):
                log.info("%s: %s. Licence: %s", name, source.title, source.licence)
                (_fetch_files if source.files else _fetch_repository)(registry, name, policy)
            elif verify:
                _verify(folder, source)
        log.info("%s: %s", name, folder)


def is_fetched(registry: Registry, name: str) -> bool:
    """Whether a source was fetched completely and its record fits the registry; compares sizes, not contents."""
    source, folder = registry.source(name), Path(registry.downloads, name)
    try:
        record = read_record(folder)
        files, root = record["files"], Path(record.get("folder", folder))
        return bool(files) and source.files.keys() <= files.keys() and all(
            (root / file).stat().st_size == entry["size"] and _fits(source.files.get(file), entry)
            for file, entry in files.items())
    except (DataError, OSError, KeyError, TypeError, AttributeError):
        return False


def fetched_file(registry: Registry, name: str, file: str) -> Path:
    """The path of a fetched file, after comparing its bytes with its record.

    Raises:
        ConfigError: unknown source.
        DataError: the file is missing or altered.
    """
    registry.source(name)
    folder = Path(registry.downloads, name)
    path, recorded = folder / file, read_record(folder)["files"].get(file)
    if recorded is None or sha256(path) != recorded["sha256"]:
        raise DataError(f"{path}: differs from the sha256 in {RECORD}",
                        f"remove {folder} and fetch it again: turncredit fetch {name}")
    return path


def read_record(folder: Path) -> dict[str, Any]:
    """Read ``fetched.json`` of a source.

    Raises:
        DataError: the source was not fetched, or its record cannot be read.
    """
    path = folder / RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", f"fetch it: turncredit fetch {folder.name}") from error
    return record


def _fits(file: File | None, entry: Mapping[str, Any]) -> bool:
    """Whether a recorded file has the size and sha256 of the registry."""
    return file is None or (entry["size"] == (file.size or entry["size"])
                            and entry["sha256"] == (file.sha256 or entry["sha256"]))


def _bytes_left(registry: Registry, name: str) -> int:
    """Bytes of a source that are still to be downloaded, as far as known."""
    partial = Path(registry.downloads, f".{name}.partial")
    here = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file()) if partial.exists() else 0
    return max(0, registry.source(name).bytes - here)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock a source while the block runs; other processes that fetch it wait."""
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


def _fetch_files(registry: Registry, name: str, policy: RetryPolicy) -> None:
    """Fetch a source that is a list of files."""
    source, folder = registry.source(name), Path(registry.downloads, name)
    work = folder.with_name(f".{name}.partial")
    with writing(folder):
        if folder.exists() and not work.exists():  # no record that fits: files copied by hand, or an older registry
            folder.rename(work)
        work.mkdir(parents=True, exist_ok=True)
    records: dict[str, FileRecord] = {}
    if (work / RECORD).exists():
        records = {file: FileRecord(**entry) for file, entry in read_record(work)["files"].items()}
    with httpx.Client(follow_redirects=True) as http:
        for file, entry in source.files.items():
            path = work / file
            if path.exists():
                records[file] = _accept(path, source.url(file), entry, records.get(file))
            else:
                alternatives = tuple(_alternatives(registry, name, file))
                if not alternatives:
                    refuse_offline(f"{name}/{file}")
                request = FileRequest(path, alternatives, entry.size, entry.sha256, entry.md5)
                records[file] = download(request, http, policy)
            _write_record(work, source, records)
    with writing(folder):
        work.rename(folder)


def _accept(path: Path, url: str, entry: File, record: FileRecord | None) -> FileRecord:
    """The record of a file that is here already: of an interrupted fetch, or copied by hand.

    Raises:
        DataError: it differs from the registry or from its record.
    """
    size, sha = path.stat().st_size, file_hash(path, "sha256")
    expected_sha = entry.sha256 or (record.sha256 if record else None)
    for what, actual, expected in (("bytes", size, entry.size), ("the sha256", sha, expected_sha),
                                   ("the md5", file_hash(path, "md5") if entry.md5 else None, entry.md5)):
        if expected not in (None, actual):
            raise DataError(f"{path}: has {what} {actual}, not {expected}", "remove it, and fetch it again")
    return record or FileRecord(url, size, sha, "config/sources.yaml" if entry.sha256 or entry.md5 else
                                "seen when first checked, compared with nothing")


def _alternatives(registry: Registry, name: str, file: str) -> Iterator[tuple[Piece, ...]]:
    """Where to get a file: the mirror, then the publisher, who may have it in parts."""
    source = registry.sources[name]
    entry = source.files[file]
    if registry.mirror is not None:
        mirrored = f"{registry.mirror.rstrip('/')}/{name}/{file}"
        if local_path(mirrored) is not None or not offline():
            yield (Piece(mirrored, entry.size, entry.sha256),)
    if not offline():
        yield tuple(Piece(source.url(part), known.size, known.sha256) for part, known in entry.parts.items()) or (
            Piece(source.url(file), entry.size, entry.sha256),)


def _write_record(target: Path, source: Source, files: Mapping[str, FileRecord], **more: str) -> None:
    record = {"title": source.title, "licence": source.licence, "note": source.note, "repository": source.repository,
              "revision": source.revision, **more, "files": {file: asdict(entry) for file, entry in files.items()}}
    write_text(target / RECORD, json.dumps(record, indent=2) + "\n")


def _verify(folder: Path, source: Source) -> None:
    """Read every file of a fetched source again.

    Raises:
        DataError: one differs from its record.
    """
    record = read_record(folder)
    for file, entry in record["files"].items():
        path = Path(record.get("folder", folder), file)
        _accept(path, entry["url"], source.files.get(file, File(sha256=entry["sha256"])), FileRecord(**entry))


def _fetch_repository(registry: Registry, name: str, policy: RetryPolicy) -> None:
    """Fetch a whole hub repository into the hub library's cache (HF_HOME), and record its files.

    The library names the blob of a large file by the sha256 that the hub announces, but does not compare; this does.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    source = registry.source(name)
    try:
        folder = Path(snapshot_download(
            source.repository, repo_type=source.kind, revision=source.revision, etag_timeout=policy.timeout_s,
            endpoint=os.environ.get(ENDPOINT), local_files_only=offline()))
    except LocalEntryNotFoundError as error:
        refuse_offline(f"{source.repository} at {source.revision or 'main'}")
        raise DataError(f"{source.repository}: cannot be fetched: {error}", "try again later") from error
    except (HfHubHTTPError, OfflineModeIsEnabled) as error:
        raise DataError(f"{source.repository}: cannot be fetched: {error}",
                        "check repository and revision in config/sources.yaml, or try again later") from error
    except OSError as error:
        raise DataError(f"{source.repository}: cannot be written: {error}",
                        "free some space, or choose another folder: HF_HOME=...") from error
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        blob = path.resolve().name
        sha, announced = sha256(path), len(blob) == 64
        if announced and sha != blob:
            raise DataError(f"{path}: has the sha256 {sha}, not {blob}", f"remove {path.resolve()}, and fetch it again")
        files[path.relative_to(folder).as_posix()] = FileRecord(
            source.repository, path.stat().st_size, sha, "named by the hub" if announced else
            "seen at the first download, compared with nothing")
    _write_record(Path(registry.downloads, name), source, files, folder=str(folder), commit=folder.name)
