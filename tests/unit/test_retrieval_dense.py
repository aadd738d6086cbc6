"""Passages by row, shards, and each kind of index against a search by hand."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from tests.encoders import faiss_config, passages, write_corpus
from tests.tolerance import assert_close
from turncredit.config.retriever import FaissConfig, RetrieverConfig
from turncredit.data.corpus import PassageTable, build_table, read_corpus
from turncredit.errors import ConfigError, DataError
from turncredit.retrieval.dense import DenseSearcher, FlatIndex, build_dense, open_index
from turncredit.retrieval.encoder import embed_shard
from turncredit.retrieval.manifest import needs, read_manifest
from turncredit.retrieval.vectors import Vectors, read_flat_file, read_shard, read_shards, shard_path, shard_range

DIMENSION = 16
pytestmark = pytest.mark.numeric


class HashEncoder:
    """A stand-in for a transformer: a vector drawn from each text, the same for queries and passages."""

    identity, dimension = "hash", DIMENSION

    def __init__(self, **more: object) -> None:
        self.config = faiss_config("nowhere", **more)
        self.seen: list[str] = []

    def passages(self, texts):
        self.seen += texts
        drawn = [np.random.default_rng(list(text.encode())).standard_normal(DIMENSION) for text in texts]
        return np.stack([vector / np.linalg.norm(vector) for vector in drawn]).astype(np.float32)

    queries = passages


def unit(count, seed=0):
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSION))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def by_hand(vectors, queries, k):
    """Rows of the k best, equal scores in order of rows."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    return np.lexsort((np.broadcast_to(np.arange(len(vectors)), scores.shape), -scores))[:, :k]


@pytest.fixture
def table(tmp_path):
    (tmp_path / "data").mkdir()
    build_table(write_corpus(tmp_path / "data" / "corpus.jsonl", passages(53)), tmp_path / "index" / "passages")
    return PassageTable(tmp_path / "index" / "passages")


# Passages by row.


def test_a_table_holds_the_passages_of_the_corpus_in_order(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["kala", "ünï \U0001f600", "", "x" * 5000])
    corpus.write_text(corpus.read_text().rstrip("\n"))  # the last line may end with the file
    manifest = build_table(corpus, tmp_path / "table")
    table = PassageTable(tmp_path / "table")
    assert [table[row] for row in range(len(table))] == list(read_corpus(corpus))
    assert manifest.documents == 4
    assert json.loads((tmp_path / "table" / "passages.json").read_text())["corpus"] == "../corpus.jsonl"
    for row in (-1, 4):
        with pytest.raises(IndexError):
            table[row]


@pytest.mark.parametrize(("text", "where"), [
    ('{"id": "a", "contents": "x"}\n{"id": "b"}\n', ":2: not a passage"),
    ('{"id": "a", "contents": "x"}\n\n', ":2: not a passage"),
    ('{"id": "a", "contents": "x"}\n{"id": "b", "contents": "y"}\n{"id": "a", "contents": "z"}\n', ":3: duplicate id"),
    ("", "no passage"),
])
def test_a_bad_corpus_gets_no_table(tmp_path, text, where):
    (tmp_path / "corpus.jsonl").write_text(text)
    with pytest.raises(DataError, match=where):
        build_table(tmp_path / "corpus.jsonl", tmp_path / "table")
    assert not (tmp_path / "table").exists()
    with pytest.raises(DataError, match=r"passages\.json"):
        PassageTable(tmp_path / "table")


def test_a_table_of_another_corpus_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["one", "two"])
    build_table(corpus, tmp_path / "table")
    write_corpus(corpus, ["one", "two", "three"])
    with pytest.raises(DataError, match="changed since"):
        PassageTable(tmp_path / "table")
    corpus.unlink()
    with pytest.raises(DataError, match=r"corpus\.jsonl"):
        PassageTable(tmp_path / "table")


# Shards.


@pytest.mark.parametrize(("documents", "shards"), [(10, 3), (3, 5), (21_015_324, 64), (1, 1)])
def test_shards_hold_every_row_once_and_are_about_as_long(documents, shards):
    ranges = [shard_range(documents, shard, shards) for shard in range(shards)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == documents
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    lengths = {stop - start for start, stop in ranges}
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("storage", ["float16", "float32"])
def test_shards_together_are_the_vectors_of_the_corpus(tmp_path, table, storage):
    encoder = HashEncoder(storage=storage, batch=2)
    for shard in (2, 0, 3, 1):
        embed_shard(table, encoder, tmp_path / "shards", shard, 4)
    vectors, identity = read_shards(tmp_path / "shards", 4, table.manifest.sha256, len(table))
    expected = HashEncoder().passages([table[row].contents for row in range(len(table))])
    assert identity == "hash"
    assert np.array_equal(np.concatenate(list(vectors.blocks(7))), expected.astype(storage).astype(np.float32))
    sample = vectors.sample(20, seed=3)
    assert len(np.unique(sample, axis=0)) == 20
    assert np.array_equal(sample, vectors.sample(20, seed=3))
    assert {tuple(row) for row in sample.tolist()} <= {
        tuple(row) for row in expected.astype(storage).astype(np.float32).tolist()}
    assert np.array_equal(vectors.sample(99, seed=3), np.concatenate(list(vectors.blocks(99))))


def test_a_finished_shard_is_left_and_an_unfinished_or_foreign_one_is_made_again(tmp_path, table):
    folder, path = tmp_path / "shards", shard_path(tmp_path / "shards", 0, 2)
    first = embed_shard(table, HashEncoder(), folder, 0, 2)
    again = HashEncoder()
    assert embed_shard(table, again, folder, 0, 2) == first
    assert again.seen == []
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match="not a finished shard"):
        read_shard(path)
    repaired = HashEncoder()
    embed_shard(table, repaired, folder, 0, 2)
    assert len(repaired.seen) == len(table) // 2
    other = HashEncoder()
    other.identity = "another"
    embed_shard(table, other, folder, 0, 2)
    assert len(other.seen) == len(table) // 2
    assert read_shard(path)[0].encoder == "another"


def test_an_encoder_that_fails_midway_leaves_no_shard(tmp_path, table):
    class Failing(HashEncoder):
        def passages(self, texts):
            if len(self.seen) > 30:
                raise RuntimeError("the GPU fell off")
            return super().passages(texts)

    with pytest.raises(RuntimeError, match="fell off"):
        embed_shard(table, Failing(batch=1), tmp_path / "shards", 0, 1)
    assert list((tmp_path / "shards").iterdir()) == []


def test_shards_that_do_not_fit_are_named(tmp_path, table):
    folder = tmp_path / "shards"
    with pytest.raises(ConfigError, match="no shard 2 of 2"):
        embed_shard(table, HashEncoder(), folder, 2, 2)
    embed_shard(table, HashEncoder(), folder, 0, 2)
    with pytest.raises(DataError, match="00001-of-00002"):
        read_shards(folder, 2, table.manifest.sha256, len(table))
    other = HashEncoder()
    other.identity = "another"
    embed_shard(table, other, folder, 1, 2)
    with pytest.raises(DataError, match="another encoder"):
        read_shards(folder, 2, table.manifest.sha256, len(table))
    with pytest.raises(DataError, match="another corpus"):
        read_shards(folder, 2, "0" * 64, len(table))


def test_a_flat_file_of_faiss_is_read_as_it_is(tmp_path):
    import faiss

    vectors = unit(40)
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "flat.index"))
    assert np.array_equal(np.concatenate(list(read_flat_file(tmp_path / "flat.index", 40).blocks(9))), vectors)
    with pytest.raises(DataError, match="40 vectors, but the corpus has 41"):
        read_flat_file(tmp_path / "flat.index", 41)
    whole = (tmp_path / "flat.index").read_bytes()
    for damaged in (whole[:-4], whole[:20], b"IxF2" + whole[4:]):
        (tmp_path / "flat.index").write_bytes(damaged)
        with pytest.raises(DataError, match=r"flat\.index"):
            read_flat_file(tmp_path / "flat.index", 40)


# Search.


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize(("block", "k"), [(7, 3), (7, 50), (1000, 5), (200, 200), (1, 2)])
def test_exact_search_is_the_search_by_hand(tmp_path, storage, block, k):
    vectors = unit(200).astype(storage)
    np.save(tmp_path / "vectors.npy", vectors)
    queries = unit(9, seed=1)
    scores, rows = FlatIndex(tmp_path / "vectors.npy", block=block).search(queries, k)
    assert np.array_equal(rows, by_hand(vectors, queries, k))
    expected = np.take_along_axis(queries @ vectors.T.astype(np.float32), rows, 1)
    assert_close(scores, expected, terms=DIMENSION, scale=1.0)  # of vectors of length 1


@pytest.mark.parametrize("block", [5, 64, 1000])
def test_equal_vectors_are_in_the_order_of_the_corpus_also_at_the_cut(tmp_path, block):
    vectors = np.repeat(unit(4), 60, axis=0)[np.random.default_rng(0).permutation(240)]
    np.save(tmp_path / "vectors.npy", vectors)
    index, queries = FlatIndex(tmp_path / "vectors.npy", block=block), unit(5, seed=2)
    _, rows = index.search(queries, 70)
    assert np.array_equal(rows, by_hand(vectors, queries, 70))
    for n in range(5):
        assert np.array_equal(index.search(queries[n:n + 1], 70)[1][0], rows[n]), "alone as among others"


def built(tmp_path, vectors, **settings):
    config = faiss_config("nowhere", **settings)
    manifest = build_dense(Vectors([vectors[:100], vectors[100:]]), "hash", "c" * 64, tmp_path, config)
    return config, manifest


@pytest.mark.parametrize(("settings", "least"), [
    ({"index": "flat"}, 1.0), ({"index": "flat", "storage": "float16"}, 0.99),
    ({"index": "hnsw", "links": 16, "ef_construction": 64, "ef_search": 64}, 0.95),
    ({"index": "hnsw", "links": 16, "ef_construction": 64, "ef_search": 64, "storage": "float16"}, 0.95),
    ({"index": "ivfpq", "lists": 8, "probes": 8, "code_bytes": 16}, 0.8),
])
def test_every_kind_finds_its_own_vectors_and_most_neighbours(tmp_path, settings, least):
    vectors = unit(600)
    config, manifest = built(tmp_path, vectors, **settings)
    index = open_index(tmp_path, config)
    assert np.array_equal(index.search(vectors, 1)[1][:, 0], np.arange(600))
    queries = unit(50, seed=1)
    scores, rows = index.search(queries, 10)
    exact = by_hand(vectors, queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), exact.tolist(), strict=True)])
    assert recall >= least
    assert (np.diff(scores, axis=1) <= 0).all()
    assert manifest == read_manifest(tmp_path)
    assert manifest.size_bytes == pytest.approx(manifest.needs.disk, rel=0.02, abs=4096), "arithmetic and file agree"


@pytest.mark.parametrize("settings", [{"index": "hnsw"}, {"index": "ivfpq", "lists": 4, "probes": 4, "code_bytes": 8}])
def test_approximate_search_orders_equal_scores_by_row(tmp_path, settings):
    vectors = np.repeat(unit(300), 2, axis=0)
    config, _ = built(tmp_path, vectors, **settings)
    scores, rows = open_index(tmp_path, config).search(vectors[::40], 4)
    for row_scores, found in zip(scores, rows, strict=True):
        told = list(zip(-row_scores, found, strict=True))
        assert told == sorted(told)


def test_what_an_index_cannot_be_built_from_is_said_before_work(tmp_path):
    for settings, message in (({"lists": 8, "code_bytes": 5}, "does not divide the dimension 16"),
                              ({"lists": 700, "code_bytes": 8}, "700 training vectors or more, and there are 600")):
        with pytest.raises(ConfigError, match=message):
            built(tmp_path, unit(600), index="ivfpq", **settings)
    assert list(tmp_path.iterdir()) == []


def test_needs_grow_with_vectors_and_are_those_of_the_papers_corpus():
    wiki = {kind: needs(FaissConfig.model_validate({"index": kind, "storage": "float32"}), 21_015_324, 768)
            for kind in ("flat", "hnsw", "ivfpq")}
    assert wiki["flat"].disk == 21_015_324 * 768 * 4  # e5_Flat.index less its header of 45 bytes
    assert wiki["hnsw"].disk > wiki["flat"].disk > 20 * wiki["ivfpq"].disk
    assert needs(FaissConfig(index="flat"), 21_015_324, 768).disk * 2 == wiki["flat"].disk
    assert wiki["hnsw"].build > wiki["hnsw"].disk
    assert wiki["flat"].build < 2**30


# The searcher.


@pytest.fixture
def searcher(tmp_path, table):
    encoder = HashEncoder()
    embed_shard(table, encoder, tmp_path / "shards", 0, 1)
    vectors, identity = read_shards(tmp_path / "shards", 1, table.manifest.sha256, len(table))
    build_dense(vectors, identity, table.manifest.sha256, tmp_path / "index", encoder.config)
    return DenseSearcher(tmp_path / "index", encoder.config, encoder)


def test_a_passage_s_own_text_finds_it_and_blank_queries_find_nothing(searcher, table):
    own, blank, again = searcher.search([table[7].contents, "  ", table[7].contents], 3)
    assert own[0][0] == table[7]
    assert_close(own[0][1], 1.0, terms=DIMENSION)
    assert (len(own), blank, again) == (3, [], own)
    assert [score for _, score in own] == sorted((score for _, score in own), reverse=True)
    assert searcher.search(["x"], 0) == [[]]
    assert searcher.search([], 3) == []
    assert len(searcher.search(["x"], 999)[0]) == len(table)


def test_another_encoder_or_a_cut_index_is_refused(tmp_path, searcher):
    other = HashEncoder()
    other.identity = "another"
    with pytest.raises(DataError, match="encoded by hash"):
        DenseSearcher(tmp_path / "index", other.config, other)
    vectors = np.load(tmp_path / "index" / "faiss" / "vectors.npy")
    np.save(tmp_path / "index" / "faiss" / "vectors.npy", vectors[:-1])
    with pytest.raises(DataError, match="52 vectors and 53 passages"):
        DenseSearcher(tmp_path / "index", searcher._encoder.config, searcher._encoder)


def test_the_served_identity_is_that_of_the_ranking(tmp_path, searcher):
    manifest, config = read_manifest(tmp_path / "index"), searcher._encoder.config

    def served(**more):
        return manifest.ranking_sha256(RetrieverConfig(kind="faiss", faiss=config.model_copy(update=more)))

    assert served(batch=99, shards=7, device="cuda", links=99, lists=99) == served()
    with pytest.raises(ConfigError, match=r"faiss\.storage = float32, but the config says float16"):
        served(storage="float16")
    with pytest.raises(ConfigError, match=r"the config says retriever\.kind = lucene"):
        manifest.ranking_sha256(RetrieverConfig())
    _, approximate = built(tmp_path / "hnsw", unit(600), index="hnsw")
    asked = [approximate.ranking_sha256(RetrieverConfig(kind="faiss", faiss=approximate.settings.model_copy(
        update={"ef_search": ef}))) for ef in (32, 64)]
    assert asked[0] != asked[1], "how far a query looks is part of the ranking, and needs no other index"
