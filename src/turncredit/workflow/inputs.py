"""Inputs of the rules for data, indexes and policies, and the digests of the settings that decide them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turncredit.config.base import StrictModel
from turncredit.config.load import Scale
from turncredit.config.retriever import FaissConfig, RetrieverConfig
from turncredit.data.sources import Registry
from turncredit.errors import ConfigError
from turncredit.files import json_sha256
from turncredit.retrieval.manifest import build_settings

NO_MATCH = "(?!)"  # a wildcard constraint that matches no text


def one_of(names: Iterable[str]) -> str:
    """A wildcard constraint that allows these names.

    >>> one_of(["smoke", "mini"]), one_of([])
    ('mini|smoke', '(?!)')
    """
    return "|".join(sorted(names)) or NO_MATCH


def further_retrievers(scales: Mapping[str, Scale]) -> str:
    """Constraint: names of the retrievers that scales have in addition to their own.

    Raises:
        ConfigError: one is dense. Only a scale's own retriever may be.
    """
    found = {name: retriever.kind for scale in scales.values() for name, retriever in scale.retrievers.items()}
    for name, kind in found.items():
        if kind != "lucene":
            raise ConfigError(f"retrievers.{name}: kind {kind} is allowed for a scale's own retriever only",
                              "move it to the key `retriever`")
    return one_of(found)


def task_experiments(scale: Scale) -> dict[str, str]:
    """Task name -> the first experiment that has this task. All experiments of a task share one initial policy."""
    first: dict[str, str] = {}
    for name, experiment in scale.experiments.items():
        first.setdefault(experiment.task.name, name)
    return first


def settings_hash(*settings: Any) -> str:
    """A short hash of settings. As a rule's parameter it makes a job run again when one of them changes.

    Keys at their defaults are left out, so a new key makes no job run again.
    """
    plain = [each.hashed_fields() if isinstance(each, StrictModel) else each for each in settings]
    return json_sha256(plain)[:16]


@dataclass(frozen=True, slots=True)
class ScaleInputs:
    """Files that a scale's data, indexes and policies are made from. All paths are relative to the clone.

    Attributes:
        scale: its configuration.
        registry: everything that can be downloaded.
    """

    scale: Scale
    registry: Registry

    def fetched(self, sources: Iterable[str]) -> list[str]:
        """Records of finished downloads."""
        return [f"{self.registry.downloads}/{source}/fetched.json" for source in sources]

    # Data ------------------------------------------------------------------------------------------

    def data(self) -> list[str]:
        """Downloads that questions and passages are made from; none where they are generated.

        Raises:
            ConfigError: no source has a data set's questions.
        """
        if self.scale.questions is None:
            return []
        sources = [*map(self.registry.source_of, self.scale.datasets), self.scale.retriever.corpus]
        return self.fetched(dict.fromkeys(source for source in sources if source is not None))

    def data_settings_hash(self) -> str:
        """Hash of the settings that decide questions and passages."""
        if self.scale.questions is None:
            return settings_hash(self.scale.world)
        trained_on = {name for experiment in self.scale.experiments.values() for name in experiment.train_on}
        return settings_hash(self.scale.questions, self.scale.retriever.corpus, sorted(trained_on))

    # Indexes ---------------------------------------------------------------------------------------

    def retrievers(self) -> dict[str, RetrieverConfig]:
        """The scale's retrievers by name; its own is named ""."""
        return {"": self.scale.retriever} | self.scale.retrievers

    def index(self, retriever: str = "") -> list[str]:
        """Files of a retriever's index."""
        folder = f"index/{self.scale.name}/{retriever}".rstrip("/")
        return [f"{folder}/index.json", f"{folder}/{self.retrievers()[retriever].kind}"]

    def all_indexes(self) -> list[str]:
        """Files of every index."""
        return [file for name in self.retrievers() for file in self.index(name)]

    def indexes(self, *experiments: str) -> list[str]:
        """Files of the indexes that experiments search in."""
        names = dict.fromkeys(self.scale.experiments[name].retriever or "" for name in experiments)
        return [file for name in names for file in self.index(name)]

    def passages(self, retriever: str = "") -> list[str]:
        """What a Lucene index is made from: the passages, or a downloaded index."""
        prebuilt = self.retrievers()[retriever].prebuilt
        return [f"data/{self.scale.name}/corpus.jsonl"] if prebuilt is None else self.fetched([prebuilt])

    def lucene_settings_hash(self, retriever: str = "") -> str:
        """Hash of the settings that decide a Lucene index."""
        return settings_hash(self.retrievers()[retriever].model_dump(include={"kind", "k1", "b", "prebuilt"}))

    def vectors(self) -> list[str]:
        """What the FAISS index is made from: embedded shards, or a downloaded index."""
        if self.scale.retriever.prebuilt is not None:
            return self.fetched([self.scale.retriever.prebuilt])
        count = self._faiss.shards
        shards = [f"index/{self.scale.name}/embeddings/{n:05d}-of-{count:05d}" for n in range(count)]
        return [f"{shard}{suffix}" for shard in shards for suffix in (".npy", ".json")]

    def encoder(self) -> list[str]:
        """The record of a downloaded encoder; none for a folder or a hub id that config/sources.yaml does not name."""
        names = [name for name, source in self.registry.sources.items()
                 if self._faiss.encoder in (name, source.repository)]
        return self.fetched(names)

    def vectors_settings_hash(self) -> str:
        """Hash of the settings that decide a passage's vector."""
        return settings_hash(self._vector_settings())

    def faiss_settings_hash(self) -> str:
        """Hash of the settings that decide the FAISS index."""
        return settings_hash(self._vector_settings(), build_settings(self._faiss), self.scale.retriever.prebuilt)

    def _vector_settings(self) -> dict[str, Any]:
        """The settings of a flat index: those that every index of the same vectors shares."""
        flat = build_settings(self._faiss.model_copy(update={"index": "flat"}))
        return {"encoder": self._faiss.encoder} | flat | {"index": None}

    @property
    def _faiss(self) -> FaissConfig:
        assert self.scale.retriever.faiss is not None  # the rules of FAISS are for scales that have it
        return self.scale.retriever.faiss

    # Policies --------------------------------------------------------------------------------------

    def policy(self, path_or_id: str | None) -> list[str]:
        """The record of a downloaded policy; none for a folder or a hub id that config/sources.yaml does not name."""
        return self.fetched(name for name, source in self.registry.sources.items()
                            if source.repository == path_or_id and not source.files)

    def warm_start_settings_hash(self) -> str:
        """Hash of the settings of the base policies, which are warm-started on demonstrations of all tasks."""
        assert self.scale.warm_start is not None  # the rules of warm starts are for scales that have one
        tasks = [self.scale.task_of(experiment) for experiment in task_experiments(self.scale).values()]
        return settings_hash(self.scale.policy, self.scale.warm_start.hashed_fields(exclude={"threads"}), *tasks)
