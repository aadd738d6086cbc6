"""The registry of downloads, ``config/sources.yaml``: a strict model of its sources and their files.

A source is a list of files at one address, or a whole repository on the Hugging Face hub. Sizes, hashes and row counts
in the registry are checked after a download. Those it leaves out are recorded at the first download.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from turncredit.config.base import StrictModel, explain, read_mapping
from turncredit.config.load import Scale
from turncredit.data.questions import Split
from turncredit.errors import ConfigError, DataError, nearest

Format = Literal["flashrag", "search_r1", "trivia_rc", "wiki18", "lucene", "faiss", "model"]
QUESTIONS: frozenset[Format] = frozenset({"flashrag", "search_r1", "trivia_rc"})
HUB = "https://huggingface.co"
OFFLINE, ENDPOINT, MIRROR, FOLDER = "HF_HUB_OFFLINE", "HF_ENDPOINT", "TURNCREDIT_MIRROR", "TURNCREDIT_DOWNLOADS"

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Md5 = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Commit = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]


class Part(StrictModel):
    """One part of a file that is published in parts; its name is appended to the source's address."""

    size: int = Field(ge=1)  # bytes
    sha256: Sha256


class Inside(StrictModel):
    """The only file inside an archive."""

    rows: int = Field(ge=1)
    size: int | None = Field(None, ge=1)  # bytes
    sha256: Sha256 | None = None


class File(StrictModel):
    """One file of a source, under its name in the source's folder.

    With ``sha256: null`` the hash that the hub announces is checked, and the one of the first download is recorded.
    """

    size: int | None = Field(None, ge=1)  # bytes
    about: int | None = Field(None, ge=1)  # rounded size in bytes, where the exact one is unknown
    sha256: Sha256 | None = None
    md5: Md5 | None = None  # where the publisher gives no sha256
    parts: dict[str, Part] = Field(default={})  # joined in this order; empty: published as one file
    split: Split | None = None  # question files: the split that the rows belong to
    rows: dict[str, int] = Field(default={})  # question files: number of rows of each dataset
    inside: Inside | None = None

    @model_validator(mode="after")
    def _parts_add_up(self) -> File:
        if self.parts and self.size is not None and self.size != (total := sum(p.size for p in self.parts.values())):
            raise ValueError(f"parts: together {total} bytes, and size = {self.size}")
        return self


class Source(StrictModel):
    """A set of files, or a hub repository, with its licence."""

    title: str
    format: Format
    licence: str
    note: str = ""  # caveats
    repository: str  # on the hub; for kind url the address that file names are appended to
    kind: Literal["dataset", "model", "url"] = "dataset"
    revision: Commit | None = None  # null: the newest
    folder: str = ""  # in the repository
    files: dict[str, File] = Field(default={})  # empty: the whole repository, in the hub library's cache

    @model_validator(mode="after")
    def _files_are_complete(self) -> Source:
        for name in self.files:
            if name != Path(name).as_posix() or Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"files.{name}: not a name under the source's folder")
        if self.kind == "url" and not self.files:
            raise ValueError("files is missing: an address that is no hub repository lists nothing by itself")
        if self.format in QUESTIONS and not all(file.split and file.rows for file in self.files.values()):
            raise ValueError("files: each file of questions has a split and rows")
        return self

    def url(self, name: str) -> str:
        """The address of a file of this name."""
        if self.kind == "url":
            return f"{self.repository.rstrip('/')}/{name}"
        root = os.environ.get(ENDPOINT, HUB).rstrip("/") + ("/datasets" if self.kind == "dataset" else "")
        inside = "/".join(part for part in (self.folder, name) if part)
        return f"{root}/{self.repository}/resolve/{self.revision or 'main'}/{inside}"

    @property
    def bytes(self) -> int:
        """The size of the download, as far as it is known."""
        return sum(file.size or file.about or 0 for file in self.files.values())


class Registry(StrictModel):
    """All sources, the download folder and the mirror."""

    downloads: str = "downloads"  # the folder; relative to the clone
    mirror: str | None = None  # folder, file:// or http(s):// holding {source}/{file}; tried first
    instead: dict[str, str] = Field(default={})  # dataset -> its source, if that has another name
    several_hops: tuple[str, ...] = ()  # datasets whose questions need more than one passage
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _sources_exist(self) -> Registry:
        for dataset, name in self.instead.items():
            if name not in self.sources:
                raise ValueError(f"instead.{dataset}: no source {name!r}; {nearest(name, self.sources)}")
        return self

    def source(self, name: str) -> Source:
        """The source of this name.

        Raises:
            ConfigError: unknown name.
        """
        if name not in self.sources:
            raise ConfigError(f"no source {name!r} in config/sources.yaml", nearest(name, self.sources))
        return self.sources[name]

    def source_of(self, dataset: str) -> str:
        """The name of the source that has a dataset's questions.

        Raises:
            ConfigError: no source has them.
        """
        name = self.instead.get(dataset, dataset)
        sets = sorted({d for s in self.sources.values() for file in s.files.values() for d in file.rows})
        if name not in self.sources or not any(dataset in file.rows for file in self.sources[name].files.values()):
            raise ConfigError(f"no source in config/sources.yaml has questions of {dataset!r}", nearest(dataset, sets))
        return name

    def files_of(self, dataset: str, split: Split) -> Iterator[tuple[str, str, File]]:
        """(source name, file name, file) of each question file of a dataset's split."""
        name = self.source_of(dataset)
        yield from ((name, file, entry) for file, entry in self.sources[name].files.items()
                    if entry.split == split and dataset in entry.rows)

    def needed(self, scale: Scale) -> list[str]:
        """Names of the sources that a scale reads: questions, passages, indexes and models.

        Raises:
            ConfigError: no source has a dataset's questions.
        """
        if scale.questions is None:
            return []
        retrievers = (scale.retriever, *scale.retrievers.values())
        named = [name for r in retrievers for name in (r.corpus, r.prebuilt, r.faiss.encoder if r.faiss else None)]
        named += [scale.policy.path_or_id, *(found.path_or_id for found in scale.checkpoints.values() if found.in_all)]
        repositories = {source.repository: name for name, source in self.sources.items() if not source.files}
        read = (repositories.get(name, name) for name in named if name is not None)
        return list(dict.fromkeys([*map(self.source_of, scale.datasets), *(n for n in read if n in self.sources)]))


def load_registry(root: Path) -> Registry:
    """Read and check ``config/sources.yaml`` of the clone at ``root``.

    The environment variables TURNCREDIT_DOWNLOADS and TURNCREDIT_MIRROR override its folder and mirror.

    Raises:
        ConfigError: unreadable, an unknown key, or a value out of range.
    """
    path = root / "config" / "sources.yaml"
    overrides = {"downloads": os.environ.get(FOLDER), "mirror": os.environ.get(MIRROR)}
    try:
        registry = Registry.model_validate(read_mapping(path) | {k: v for k, v in overrides.items() if v})
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Registry)}",
                          "docs/DATA.md explains each key") from error
    return registry.model_copy(update={"downloads": str(root / registry.downloads)})


def offline() -> bool:
    """Whether HF_HUB_OFFLINE, the hub library's variable, forbids the network."""
    return os.environ.get(OFFLINE, "").upper() in {"1", "ON", "YES", "TRUE"}


def refuse_offline(what: str) -> None:
    """Raise if the network is forbidden.

    Raises:
        DataError: HF_HUB_OFFLINE is set; ``what`` names the missing file or repository.
    """
    if offline():
        raise DataError(f"{what}: not here, and {OFFLINE} forbids the network",
                        "fetch it on a machine with a network, such as a cluster's login node "
                        "(snakemake --cores 2 fetch --config scale=...), "
                        f"or name a folder that has it: {MIRROR}=... or {FOLDER}=...")
