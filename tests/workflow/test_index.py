"""Which index rules run for a scale's retrievers."""

from __future__ import annotations

import yaml

from tests.workflow.conftest import Clone

DENSE = {"kind": "faiss", "faiss": {"encoder": "encoders/tiny", "device": "cpu", "shards": 3}}


def write_scale(clone: Clone, **changed: object) -> None:
    """A scale like smoke, but for some sections."""
    settings = yaml.safe_load((clone.root / "config" / "smoke.yaml").read_text())
    (clone.root / "config" / "dense.yaml").write_text(yaml.safe_dump(settings | changed))


def test_a_dense_retriever_is_embedded_in_shards_and_a_lucene_one_is_not(clone: Clone) -> None:
    write_scale(clone, retriever=DENSE, retrievers={"bm25": {"kind": "lucene", "k1": 1.2}})
    assert clone.jobs("index", "--config", "scale=dense") == {
        "world": 1, "passage_table": 1, "embed": 3, "build_faiss_index": 1, "build_further_index": 1, "index": 1}
    assert clone.jobs("index", "--config", "scale=smoke") == {"world": 1, "build_index": 1, "index": 1}


def test_a_downloaded_index_is_not_embedded(clone: Clone) -> None:
    write_scale(clone, retriever=DENSE | {"prebuilt": "wiki-18-e5-flat"},
                retrievers={"kilt": {"prebuilt": "wikipedia-kilt-doc"}})
    assert clone.jobs("index", "--config", "scale=dense") == {
        "world": 1, "passage_table": 1, "build_faiss_index": 1, "build_further_index": 1, "fetch_source": 2,
        "index": 1}
