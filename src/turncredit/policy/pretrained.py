"""Imports pretrained policies: makes a folder of links to a local folder or to the hub's cache."""

from __future__ import annotations

import os
from pathlib import Path

from turncredit.data.fetch import read_record
from turncredit.data.sources import ENDPOINT, Registry, offline, refuse_offline
from turncredit.errors import ConfigError, DataError
from turncredit.files import atomic_folder


def import_policy(name: str, revision: str | None, registry: Registry, output: Path) -> None:
    """Make ``output`` a folder of links to a policy's files.

    Args:
        name: a folder or a hub id.
        revision: commit of a hub id; None: that of config/sources.yaml, else the newest.
        registry: if it has a source with this repository, the source must have been fetched.
        output: replaced if it exists.

    Raises:
        ConfigError: the revision differs from that of the source.
        DataError: the policy cannot be downloaded, or its files are not a policy.
    """
    folder = Path(name) if Path(name).is_dir() else _from_hub(name, revision, registry)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not any(path.name == "config.json" for path in files) or not any(p.suffix == ".safetensors" for p in files):
        raise DataError(f"{folder}: no config.json with *.safetensors", "give a Hugging Face model")
    with atomic_folder(output) as fresh:
        for path in files:
            (fresh / path.name).symlink_to(path.resolve())


def _from_hub(name: str, revision: str | None, registry: Registry) -> Path:
    for source, entry in registry.sources.items():
        if entry.repository != name or entry.files:
            continue
        if revision is not None and entry.revision is not None and revision != entry.revision:
            raise ConfigError(f"{name}: revision {revision}, but {entry.revision} in config/sources.yaml",
                              "set the same commit in both")
        folder = Path(read_record(Path(registry.downloads, source))["folder"])
        if not folder.is_dir():
            raise DataError(f"{folder}: removed since {source} was fetched",
                            f"fetch it again: turncredit fetch {source}")
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, endpoint=os.environ.get(ENDPOINT),
                                      local_files_only=offline()))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError) as error:
        refuse_offline(name)
        raise DataError(f"{name}: no such folder, and the download from the hub failed: {error}",
                        "check the name and the network") from error
