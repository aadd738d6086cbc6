"""The encoder: what E5 computes, text by text, whatever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.encoders import faiss_config, passages, write_encoder
from tests.tolerance import assert_close, longest_sum, sensitivity
from turncredit.errors import CheckpointError, ConfigError, DataError
from turncredit.retrieval.encoder import Encoder, pool

TEXTS = ["", "kala", *passages(13), "Ünknown \U0001f600 letters 1984", "bola " * 200]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


def by_hand(tokenizer, model, prefix, text, limit):
    """One text alone: prefix, cut, hidden states, mean over all of its tokens, length 1."""
    ids = tokenizer(prefix + text)["input_ids"]
    ids = ids if len(ids) <= limit else [*ids[:limit - 1], ids[-1]]
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    mean = hidden.mean(0)
    return mean / mean.norm()


@pytest.mark.numeric
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_each_text_has_the_vector_that_it_has_alone(folder, batch):
    encoder = Encoder(faiss_config(folder, batch=batch))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    for method, prefix, limit in ((encoder.queries, "query: ", 24), (encoder.passages, "passage: ", 48)):
        found = method(TEXTS)
        assert found.dtype == np.float32
        assert found.shape == (len(TEXTS), encoder.dimension)

        def expected(prefix=prefix, limit=limit):
            return [by_hand(tokenizer, model, prefix, text, limit) for text in TEXTS]

        scales = sensitivity(expected, model.parameters())
        for vector, alone, scale in zip(found, expected(), scales, strict=True):
            assert_close(vector, alone, terms=longest_sum(model, limit), scale=scale)
        assert np.abs(found[2] - found[3]).max() > 0.05, "these texts differ, or the test sees nothing"


def test_a_query_is_not_encoded_as_a_passage(folder):
    encoder = Encoder(faiss_config(folder))
    assert np.abs(encoder.queries(["kala"]) - encoder.passages(["kala"])).max() > 0.01
    assert encoder.queries([]).shape == (0, encoder.dimension)


def test_the_mean_and_the_first_token_see_no_padding():
    hidden = torch.tensor([[[1.0, 0], [3.0, 2], [99, 99]], [[5.0, 5], [7, 7], [9, 9]]])
    attention = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert pool(hidden, attention, "mean").tolist() == [[2, 1], [7, 7]]
    assert pool(hidden, attention, "cls").tolist() == [[1, 0], [5, 5]]


def test_the_identity_is_what_decides_a_vector_and_not_where_it_lies(folder, tmp_path):
    same, other = write_encoder(tmp_path / "same"), write_encoder(tmp_path / "other", seed=1)
    mine = Encoder(faiss_config(folder)).identity
    assert Encoder(faiss_config(same, batch=3, shards=4)).identity == mine
    changed = [Encoder(faiss_config(other)).identity, *(
        Encoder(faiss_config(folder, **{key: value})).identity for key, value in
        {"passage_prefix": "", "max_passage_tokens": 47, "pooling": "cls", "normalize": False}.items())]
    assert len({mine, *changed}) == 1 + len(changed)


def test_half_precision_is_near_and_of_the_same_identity(folder):
    whole, half = Encoder(faiss_config(folder)), Encoder(faiss_config(folder, precision="bfloat16"))
    assert (whole.passages(TEXTS) * half.passages(TEXTS)).sum(-1).min() > 0.99
    assert whole.identity == half.identity


def test_an_encoder_that_is_not_there_or_not_whole_is_named(folder, tmp_path):
    with pytest.raises(ConfigError, match="not a folder, source or hub id"):
        Encoder(faiss_config(tmp_path / "none" / "deep" / "er"), root=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no encoder there"):
        Encoder(faiss_config(tmp_path / "empty"))
    from safetensors.torch import load_file, save_file

    broken = write_encoder(tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        Encoder(faiss_config(broken))
