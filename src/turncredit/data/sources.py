"""The registry of everything that is downloaded: ``config/sources.yaml``, closed and checked.

A source is a folder of files at one address, or a snapshot of a repository on the hub. What is known of
a file (size, sha256, rows) stands in the registry and is checked; what is not known from there is
recorded when the file is first fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from turncredit.config.base import StrictModel, explain, read_mapping
from turncredit.config.load import Scale
from turncredit.errors import ConfigError, DataError, nearest
from turncredit.miniature.questions import Split

Format = Literal["flashrag", "search_r1", "trivia_rc", "wiki18", "lucene", "faiss", "model"]
QUESTIONS: frozenset[Format] = frozenset({"flashrag", "search_r1", "trivia_rc"})
FORMATS: tuple[Format, ...] = get_args(Format)
HUB = "https://huggingface.co"
OFFLINE, ENDPOINT, MIRROR, FOLDER = "HF_HUB_OFFLINE", "HF_ENDPOINT", "TURNCREDIT_MIRROR", "TURNCREDIT_DOWNLOADS"

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Md5 = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Commit = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]


class Part(StrictModel):
    """One of the files that a larger file was cut into; its name is added to the source's address."""

    size: int = Field(ge=1)  # bytes
    sha256: Sha256


class Inside(StrictModel):
    """The one file inside an archive."""

    rows: int = Field(ge=1)
    size: int | None = Field(None, ge=1)  # bytes
    sha256: Sha256 | None = None


class File(StrictModel):
    """One file of a source, by its name under the source's folder.

    ``sha256: null`` means that it is not known from here: the hub's own is asked for, and what was
    seen at the first download is recorded.
    """

    size: int | None = Field(None, ge=1)  # bytes
    about: int | None = Field(None, ge=1)  # bytes, where only a rounded size is known
    sha256: Sha256 | None = None
    md5: Md5 | None = None  # where that is all the publisher names
    parts: dict[str, Part] = Field(default={})  # joined in this order; else one file of this name
    split: Split | None = None  # of question files: what the rows are to us
    rows: dict[str, int] = Field(default={})  # of question files: dataset -> rows
    inside: Inside | None = None

    @model_validator(mode="after")
    def _parts_make_the_whole(self) -> File:
        if self.parts and self.size is not None and self.size != (whole := sum(p.size for p in self.parts.values())):
            raise ValueError(f"parts: together {whole} bytes, and size = {self.size}")
        return self


class Source(StrictModel):
    """Something that is downloaded."""

    title: str
    format: Format
    licence: str
    note: str = ""  # what is not certain
    repository: str  # on the hub; or an address that the file names are added to
    kind: Literal["dataset", "model", "url"] = "dataset"
    revision: Commit | None = None  # null: the newest
    folder: str = ""  # inside the repository
    files: dict[str, File] = Field(default={})  # none: the whole repository, as the hub's library keeps it

    @model_validator(mode="after")
    def _whole(self) -> Source:
        for name in self.files:
            if name != Path(name).as_posix() or Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"files.{name}: not a name under the source's folder")
        if self.kind == "url" and not self.files:
            raise ValueError("files is missing: an address that is no hub repository lists nothing by itself")
        if self.format in QUESTIONS and not all(file.split and file.rows for file in self.files.values()):
            raise ValueError("files: each file of questions has a split and rows")
        return self

    def url(self, name: str) -> str:
        """Where a file of that name is."""
        if self.kind == "url":
            return f"{self.repository.rstrip('/')}/{name}"
        root = os.environ.get(ENDPOINT, HUB).rstrip("/") + ("/datasets" if self.kind == "dataset" else "")
        inside = "/".join(part for part in (self.folder, name) if part)
        return f"{root}/{self.repository}/resolve/{self.revision or 'main'}/{inside}"

    @property
    def bytes(self) -> int:
        """How much is downloaded, as far as it is known."""
        return sum(file.size or file.about or 0 for file in self.files.values())


class Registry(StrictModel):
    """Everything that can be downloaded, where it goes, and where to look first."""

    downloads: str = "downloads"  # the folder; relative to the clone
    mirror: str | None = None  # a folder, file:// or http(s):// with {source}/{file}: asked first
    instead: dict[str, str] = Field(default={})  # dataset -> the source that has it, if not the one of its name
    several_hops: tuple[str, ...] = ()  # datasets whose questions take more than one passage
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _names_lead_somewhere(self) -> Registry:
        for dataset, name in self.instead.items():
            if name not in self.sources:
                raise ValueError(f"instead.{dataset}: no source {name!r}; {nearest(name, self.sources)}")
        return self

    def source(self, name: str) -> Source:
        """The source of that name.

        Raises:
            ConfigError: there is none.
        """
        if name not in self.sources:
            raise ConfigError(f"no source {name!r} in config/sources.yaml", nearest(name, self.sources))
        return self.sources[name]

    def source_of(self, dataset: str) -> str:
        """The source that has a data set's questions.

        Raises:
            ConfigError: none has them.
        """
        name = self.instead.get(dataset, dataset)
        sets = sorted({d for s in self.sources.values() for file in s.files.values() for d in file.rows})
        if name not in self.sources or not any(dataset in file.rows for file in self.sources[name].files.values()):
            raise ConfigError(f"no source in config/sources.yaml has questions of {dataset!r}", nearest(dataset, sets))
        return name

    def files_of(self, dataset: str, split: Split) -> Iterator[tuple[str, str, File]]:
        """(source, name, file) of the question files of a data set's split."""
        name = self.source_of(dataset)
        yield from ((name, file, entry) for file, entry in self.sources[name].files.items()
                    if entry.split == split and dataset in entry.rows)

    def needed(self, scale: Scale) -> list[str]:
        """The sources that a scale reads: questions, passages, and the models that are named in the registry.

        Raises:
            ConfigError: no source has a data set's questions.
        """
        if scale.questions is None:
            return []
        retrievers = (scale.retriever, *scale.retrievers.values())
        named = [name for r in retrievers for name in (r.corpus, r.prebuilt, r.faiss.encoder if r.faiss else None)]
        named += [scale.policy.path_or_id, *(checkpoint.path_or_id for checkpoint in scale.checkpoints.values())]
        repositories = {source.repository: name for name, source in self.sources.items() if not source.files}
        read = (repositories.get(name, name) for name in named if name is not None)
        return list(dict.fromkeys([*map(self.source_of, scale.datasets), *(n for n in read if n in self.sources)]))


def load_registry(root: Path) -> Registry:
    """Read and check ``config/sources.yaml`` of a clone; the environment may name another folder and mirror.

    Raises:
        ConfigError: unreadable, an unknown key, or a value out of range.
    """
    path = root / "config" / "sources.yaml"
    asked = {"downloads": os.environ.get(FOLDER), "mirror": os.environ.get(MIRROR)}
    try:
        registry = Registry.model_validate(read_mapping(path) | {k: v for k, v in asked.items() if v})
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Registry)}",
                          "docs/PAPER_SCALE.md tells what each key holds") from error
    return registry.model_copy(update={"downloads": str(root / registry.downloads)})


def offline() -> bool:
    """Whether the environment forbids the network, in the words of the hub's library."""
    return os.environ.get(OFFLINE, "").upper() in {"1", "ON", "YES", "TRUE"}


def refuse_offline(what: str) -> None:
    """Raise where the network is forbidden.

    Raises:
        DataError: it is.
    """
    if offline():
        raise DataError(f"{what}: not here, and {OFFLINE} forbids the network",
                        "fetch it on a machine with a network (`snakemake fetch`, on a cluster the login node), "
                        f"or name a folder that has it: {MIRROR}=... or {FOLDER}=...")
