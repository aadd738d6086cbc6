"""Policies that others made: brought into the clone as a folder of links, from a folder or from the hub's cache."""

from __future__ import annotations

import os
from pathlib import Path

from turncredit.data.fetch import read_record
from turncredit.data.sources import ENDPOINT, Registry, offline, refuse_offline
from turncredit.errors import ConfigError, DataError
from turncredit.files import atomic_folder


def bring_policy(name: str, revision: str | None, registry: Registry, output: Path) -> None:
    """Make ``output`` a folder of links to a policy's files.

    Args:
        name: a folder, or a hub id.
        revision: the commit of a hub id; None: the one that config/sources.yaml names, else the newest.
        registry: a source of that repository, if there is one, must have been fetched.
        output: takes the place of what is there.

    Raises:
        ConfigError: the revision is not the one of the source.
        DataError: it is not here and cannot be fetched, or is no policy.
    """
    folder = Path(name) if Path(name).is_dir() else _of_hub(name, revision, registry)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not any(path.name == "config.json" for path in files) or not any(p.suffix == ".safetensors" for p in files):
        raise DataError(f"{folder}: holds no config.json with *.safetensors", "name a Hugging Face model")
    with atomic_folder(output) as fresh:
        for path in files:
            (fresh / path.name).symlink_to(path.resolve())


def _of_hub(name: str, revision: str | None, registry: Registry) -> Path:
    for source, entry in registry.sources.items():
        if entry.repository != name or entry.files:
            continue
        if revision is not None and entry.revision is not None and revision != entry.revision:
            raise ConfigError(f"{name}: revision {revision}, but {entry.revision} in config/sources.yaml",
                              "write the same commit in both")
        folder = Path(read_record(Path(registry.downloads, source))["folder"])
        if not folder.is_dir():
            raise DataError(f"{folder}: is gone since {source} was fetched",
                            f"fetch it again: turncredit fetch {source}")
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, endpoint=os.environ.get(ENDPOINT),
                                      local_files_only=offline()))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError) as error:
        refuse_offline(name)
        raise DataError(f"{name}: no such folder, and not fetched from the hub: {error}",
                        "check the name and the network") from error
