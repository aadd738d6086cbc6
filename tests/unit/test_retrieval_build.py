"""The commands from a scale's passages to its index, and indexes that others built."""

from __future__ import annotations

import json
import tarfile

import numpy as np
import pytest

from tests.encoders import faiss_config, passages, write_corpus, write_encoder
from turncredit.config.retriever import RetrieverConfig
from turncredit.data.corpus import PassageTable
from turncredit.errors import ConfigError, DataError
from turncredit.files import sha256
from turncredit.retrieval.bm25 import build_index, import_index
from turncredit.retrieval.build import IndexPaths, check_vectors, make_index, make_shard, make_table
from turncredit.retrieval.dense import DenseSearcher
from turncredit.retrieval.encoder import Encoder
from turncredit.retrieval.manifest import read_manifest
from turncredit.retrieval.vectors import Vectors


@pytest.fixture
def paths(tmp_path):
    write_encoder(tmp_path / "encoders" / "tiny")
    (tmp_path / "data").mkdir()
    corpus = write_corpus(tmp_path / "data" / "corpus.jsonl", passages(40))
    (tmp_path / "data" / "world.json").write_text(json.dumps({"sha256": {"corpus.jsonl": sha256(corpus)}}))
    config = RetrieverConfig(kind="faiss", faiss=faiss_config(tmp_path / "encoders" / "tiny", shards=3))
    return IndexPaths(tmp_path, config, tmp_path / "data", tmp_path / "index")


def test_passages_become_an_index_step_by_step(paths):
    make_table(paths)
    for shard in range(3):
        make_shard(paths, shard)
    assert make_index(paths) == read_manifest(paths.index)
    searcher = DenseSearcher(paths.index, paths.faiss, Encoder(paths.faiss))
    texts = [PassageTable(paths.index / "passages")[row].contents for row in range(40)]
    vectors = Encoder(paths.faiss).passages(texts)
    queries = Encoder(paths.faiss).queries(texts)
    for hits, query in zip(searcher.search(texts, 3), queries, strict=True):
        best = np.argsort(-(vectors @ query), kind="stable")[:3]
        assert [passage.id for passage, _ in hits] == [f"p{row}" for row in best]


def test_fetched_vectors_are_believed_only_if_the_encoder_makes_the_same(paths):
    make_table(paths)
    table, encoder = PassageTable(paths.index / "passages"), Encoder(paths.faiss)
    right = encoder.passages([table[row].contents for row in range(40)])
    assert check_vectors(Vectors([right]), table, paths.faiss, paths.root) == encoder.identity
    for wrong in (np.roll(right, 1, axis=0), encoder.queries([table[row].contents for row in range(40)])):
        with pytest.raises(DataError, match="its fetched vector and that of"):
            check_vectors(Vectors([wrong]), table, paths.faiss, paths.root)


def test_a_retriever_without_vectors_embeds_nothing(paths):
    lucene = IndexPaths(paths.root, RetrieverConfig(), paths.data, paths.index)
    with pytest.raises(ConfigError, match="nothing to embed"):
        make_shard(lucene, 0)


def test_a_lucene_index_in_an_archive_is_brought_in_whole(tmp_path, paths):
    config = RetrieverConfig(k1=1.2)
    mine = build_index(paths.data / "corpus.jsonl", tmp_path / "theirs", k1=0.9, b=0.4)
    with tarfile.open(tmp_path / "index.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "theirs" / "lucene", "lucene-index.theirs.2021")
    manifest = import_index(tmp_path / "index.tar.gz", paths.index, config)
    assert manifest == read_manifest(paths.index)
    assert (manifest.documents, manifest.size_bytes, manifest.k1) == (40, mine.size_bytes, 1.2)
    assert sorted(file.name for file in (paths.index / "lucene").iterdir()) == sorted(
        file.name for file in (tmp_path / "theirs" / "lucene").iterdir())
    whole = (tmp_path / "index.tar.gz").read_bytes()
    (tmp_path / "index.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"index\.tar\.gz: cannot be unpacked"):
        import_index(tmp_path / "index.tar.gz", paths.index, config)
    with tarfile.open(tmp_path / "index.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(DataError, match="cannot be unpacked"):
        import_index(tmp_path / "index.tar.gz", paths.index, config)
    assert not (paths.index / "outside").exists()
    assert sorted(path.name for path in paths.index.iterdir()) == ["index.json", "lucene"]
    assert read_manifest(paths.index) == manifest, "the index before is as it was"


def test_the_encoder_may_be_a_source_of_the_registry(paths, tmp_path):
    from turncredit.retrieval.encoder import locate

    assert locate(str(tmp_path / "encoders" / "tiny"), tmp_path) == (str(tmp_path / "encoders" / "tiny"), None)
    assert locate("owner/name", tmp_path) == ("owner/name", None)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "sources.yaml").write_text(
        "sources:\n  tiny: {title: t, format: model, licence: l, kind: model, repository: owner/name, revision: "
        + "a" * 40 + "}\n")
    for name in ("tiny", "owner/name"):
        assert locate(name, tmp_path) == ("owner/name", "a" * 40)
    folder = tmp_path / "downloads" / "tiny"
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        locate("tinny", tmp_path)
    folder.mkdir(parents=True)
    (folder / "fetched.json").write_text(json.dumps({"files": {}, "folder": "/cache/snapshot"}))
    for name in ("tiny", "owner/name"):
        assert locate(name, tmp_path) == ("/cache/snapshot", None)
