"""A tiny real encoder for tests, made here, and corpora for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizerFast

from turncredit.config.retriever import FaissConfig

HIDDEN = 32  # the encoder's dimension
CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
WORDS = [a + b + c + d for a in CONSONANTS for b in VOWELS for c in CONSONANTS for d in VOWELS]


def write_encoder(folder: Path, *, hidden: int = HIDDEN, seed: int = 0) -> Path:
    """A BERT of two layers with random weights, and its tokenizer, as ``AutoModel`` loads them."""
    folder.mkdir(parents=True)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*specials, ":", '"', ".", "query", "passage", *WORDS[:1000], *map(chr, range(97, 123)),
              *(f"##{chr(letter)}" for letter in range(97, 123)), *map(str, range(10)), *(f"##{n}" for n in range(10))]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)))
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    tokenizer.save(str(folder / "tokenizer.json"))
    BertTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(BertConfig(vocab_size=len(dict.fromkeys(pieces)), hidden_size=hidden, num_hidden_layers=2,
                             num_attention_heads=2, intermediate_size=2 * hidden, max_position_embeddings=64,
                             initializer_range=0.3)).save_pretrained(folder)
    return folder


def passages(count: int, start: int = 0) -> list[str]:
    """Different texts of three to twelve words."""
    return [" ".join(WORDS[(7 * n + 131 * k * k + 17 * k * n) % 1500] for k in range(3 + n % 10))
            for n in range(start, start + count)]


def write_corpus(path: Path, texts: Sequence[str]) -> Path:
    """A corpus of those texts with the ids "p0", "p1", ..."""
    path.write_text("".join(json.dumps({"id": f"p{n}", "contents": f'"T{n}"\n{text}'}) + "\n"
                            for n, text in enumerate(texts)))
    return path


def faiss_config(encoder: Path, **more: object) -> FaissConfig:
    """Settings for that encoder on a CPU."""
    return FaissConfig.model_validate({
        "encoder": str(encoder), "device": "cpu", "precision": "float32", "storage": "float32", "batch": 8,
        "max_query_tokens": 24, "max_passage_tokens": 48, **more})
