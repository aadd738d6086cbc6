"""Sampling by transformers' forward pass, batched, with a cache of prefixes between calls.

Randomness belongs to a row: its seed keys a Philox stream, and its n-th token takes the stream's
n-th number to invert the distribution's cumulative sum. So a sample is the same alone or in any
batch. Finished rows leave the batch at once; their keys and values stay for the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from turncredit.errors import ConfigError, NonFiniteError
from turncredit.policy.chat import Codec
from turncredit.policy.engine import Sample
from turncredit.policy.kv_cache import KVCache
from turncredit.policy.model import head_logits
from turncredit.transcript import TurnStop

GOES_ON, TAG, END, LENGTH, ASK_TEXT = range(5)
STOPS = {TAG: TurnStop.TAG, END: TurnStop.END, LENGTH: TurnStop.LENGTH}
ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """What the last call left: row r's keys and values of the tokens ``ids_R[r]`` (int32 bytes)."""

    cache: KVCache
    ids_R: list[bytes]

    def longest(self, context: bytes) -> tuple[int, int]:
        """The row that begins ``context`` and shares most with it, and how many tokens it saves.

        The context's last token is never saved: its forward pass gives the first logits.
        """
        row = max((r for r, ids in enumerate(self.ids_R) if context.startswith(ids)),
                  key=lambda r: len(self.ids_R[r]), default=None)
        return (0, 0) if row is None else (row, min(len(self.ids_R[row]), len(context) - ID_BYTES) // ID_BYTES)


class HFEngine:
    """An ``Engine`` for any causal language model with full attention.

    Args:
        model: sampled from as it is at each call; it may be trained between calls.
        codec: knows the end ids and which tokens complete a tag.

    Raises:
        ConfigError: some layers have no full attention.
    """

    def __init__(self, model: PreTrainedModel, codec: Codec) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ConfigError(f"{type(model).__name__} has layers of kind {', '.join(sorted(kinds))}",
                              "name a policy with full attention in every layer")
        self._model, self._codec = model, codec
        self._prefixes: _Prefixes | None = None

    def reset_prefix_cache(self) -> None:
        """See ``Engine``."""
        self._prefixes = None

    @torch.inference_mode()
    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...]) -> list[Sample]:
        """See ``Engine``."""
        if max_tokens < 1 or temperature <= 0 or not all(map(len, contexts)):
            raise ValueError("max_tokens is at least 1, temperature above 0, and no context is empty")
        if seeds is not None and len(seeds) != len(contexts):
            raise ValueError(f"{len(seeds)} seeds for {len(contexts)} contexts")
        if not contexts:
            return []
        ids_R = [np.asarray(context, np.int32).tobytes() for context in contexts]
        cache, logits_B_V = self._prefill(ids_R, max_tokens)
        stopper = _Stopper(self._codec, stop_tags, logits_B_V.shape[-1])
        turns = _Turns(ids_R, max_tokens, None if seeds is None else _uniforms(seeds, max_tokens))
        while True:
            token_B, logprob_B = _draw(logits_B_V / temperature, turns.uniform_B())
            live = turns.append(token_B, logprob_B, stopper)
            if not len(live):
                break
            token_B = token_B[turns.retire(live, cache)]
            hidden_B_1_H = self._forward(cache, token_B[:, None], turns.length_B)
            logits_B_V = head_logits(self._model, hidden_B_1_H[:, 0])
        self._prefixes = _Prefixes(cache, turns.cached(ids_R))
        return turns.samples()

    def _prefill(self, ids_R: list[bytes], room: int) -> tuple[KVCache, Tensor]:
        """Keys and values of all contexts but what the last call left, and the logits behind them.

        Equal contexts are computed once and copied.

        Returns:
            the cache, with ``room`` free columns behind the longest context, and logits_R_V.
        """
        model, device = self._model, self._model.device
        distinct = list(dict.fromkeys(ids_R))
        length_B = np.array([len(ids) // ID_BYTES for ids in distinct])
        found = [self._prefixes.longest(ids) if self._prefixes else (0, 0) for ids in distinct]
        row_B, start_B = (torch.tensor(column, device=device) for column in zip(*found, strict=True))
        count_B = torch.from_numpy(length_B).to(device) - start_B
        used, count = int(start_B.max()), int(count_B.max())
        columns = max(int(length_B.max()) + room, used + count)
        if self._prefixes is None:
            cache = KVCache.empty(model, len(distinct), columns)
        else:
            cache = self._prefixes.cache.expand(row_B, used, columns)

        token_B_Q = np.full((len(distinct), count), self._codec.pad_id, np.int64)
        for row, (ids, (_, start)) in enumerate(zip(distinct, found, strict=True)):
            new = np.frombuffer(ids, np.int32)[start:]
            token_B_Q[row, :len(new)] = new
        hidden_B_Q_H = self._forward(cache, torch.from_numpy(token_B_Q).to(device), start_B, count_B)
        last_B = torch.arange(len(distinct), device=device), count_B - 1
        logits_B_V = head_logits(model, hidden_B_Q_H[last_B])
        if len(distinct) == len(ids_R):
            return cache, logits_B_V
        place = {ids: i for i, ids in enumerate(distinct)}
        rows = torch.tensor([place[ids] for ids in ids_R], device=device)
        return cache.expand(rows, int(length_B.max()), columns), logits_B_V[rows]

    def _forward(self, cache: KVCache, token_B_Q: Tensor, start_B: Tensor, count_B: Tensor | None = None) -> Tensor:
        """Hidden states [B, Q, H] of the tokens that follow the first ``start_B`` of each row.

        Row b's tokens beyond ``count_B[b]`` are padding: what they leave in the cache is written
        over before it is ever seen.
        """
        width = token_B_Q.shape[1]
        start_B = start_B.to(token_B_Q.device)
        position_B_Q = start_B[:, None] + torch.arange(width, device=start_B.device)
        if count_B is not None:  # a padding token's position must exist too
            position_B_Q = position_B_Q.minimum((start_B + count_B - 1)[:, None])
        output = self._model.base_model(
            input_ids=token_B_Q, attention_mask=cache.place(start_B, width), position_ids=position_B_Q,
            past_key_values=cache, use_cache=True)
        return output.last_hidden_state


class _Stopper:
    """Says of each row whether its last token ended the turn."""

    def __init__(self, codec: Codec, tags: tuple[str, ...], vocabulary: int) -> None:
        self._codec, self._tags = codec, tags
        completion = codec.completion(tags)
        size = len(completion.surely_V)
        self._kind_V = np.full(max(size, vocabulary), GOES_ON, np.int8)  # a model may have spare embeddings
        self._kind_V[list(codec.end_ids)] = END
        self._kind_V[:size][completion.possibly_V] = ASK_TEXT
        self._kind_V[:size][completion.surely_V] = TAG

    def __call__(self, drawn_B_T: NDArray[np.int32]) -> NDArray[np.int8]:
        """GOES_ON, TAG or END for each row of a turn's tokens so far."""
        kind_B = self._kind_V[drawn_B_T[:, -1]]
        for b in np.flatnonzero(kind_B == ASK_TEXT):
            text = self._codec.decode(drawn_B_T[b].tolist())
            kind_B[b] = TAG if any(tag in text for tag in self._tags) else GOES_ON
        return kind_B


class _Turns:
    """The turns being sampled; rows keep their number while they change places in the cache.

    Places 0 .. B of the cache hold the B rows that go on.
    """

    def __init__(self, ids_R: list[bytes], max_tokens: int, uniform_R_T: NDArray[np.float64] | None) -> None:
        rows = len(ids_R)
        self._uniform_R_T = uniform_R_T
        self._drawn_R_T = np.zeros((rows, max_tokens), np.int32)
        self._logprob_R_T = np.zeros((rows, max_tokens), np.float32)
        self._count_R = np.zeros(rows, np.int64)
        self._stop_R = np.zeros(rows, np.int8)
        self._row_P = np.arange(rows)  # which row stands in a place
        self._length_P = torch.tensor([len(ids) // ID_BYTES for ids in ids_R])
        self._active, self._t = rows, 0

    @property
    def length_B(self) -> Tensor:
        """Tokens in the cache of each row that goes on."""
        return self._length_P[:self._active] + self._t - 1

    def uniform_B(self) -> Tensor | None:
        """Each going row's number for its next token."""
        if self._uniform_R_T is None:
            return None
        return torch.from_numpy(self._uniform_R_T[self._row_P[:self._active], self._t])

    def append(self, token_B: Tensor, logprob_B: Tensor, stopper: _Stopper) -> NDArray[np.int64]:
        """Take one more token of each going row; the places of those that still go on."""
        rows, t = self._row_P[:self._active], self._t
        self._drawn_R_T[rows, t], self._logprob_R_T[rows, t] = token_B.cpu(), logprob_B.cpu()
        stop_B = stopper(self._drawn_R_T[rows, :t + 1])
        self._t = t + 1
        if self._t == self._drawn_R_T.shape[1]:
            stop_B[stop_B == GOES_ON] = LENGTH
        self._stop_R[rows], self._count_R[rows] = stop_B, self._t
        return np.flatnonzero(stop_B == GOES_ON)

    def retire(self, live: NDArray[np.int64], cache: KVCache) -> Tensor:
        """Fill the places of finished rows with the last going ones; the order in which they stand."""
        order = np.arange(self._active)
        if len(live) < self._active:
            finished = np.setdiff1d(order, live, assume_unique=True)
            left, right = finished[finished < len(live)], live[live >= len(live)]
            used = int(self._length_P.max()) + self._t - 1
            if len(left):
                cache.swap(torch.from_numpy(left), torch.from_numpy(right), used)
                order[left], order[right] = right, left
                self._row_P[:self._active] = self._row_P[order]
                self._length_P[:self._active] = self._length_P[order]
            self._active = len(live)
        return torch.from_numpy(order[:self._active])

    def cached(self, ids_R: list[bytes]) -> list[bytes]:
        """The ids whose keys and values stand in each place: all but a turn's last token."""
        return [ids_R[r] + self._drawn_R_T[r, :self._count_R[r] - 1].tobytes() for r in self._row_P]

    def samples(self) -> list[Sample]:
        """The finished turns, by row."""
        return [Sample(tuple(ids[:count].tolist()), tuple(logprobs[:count].tolist()), STOPS[stop])
                for ids, logprobs, count, stop in zip(self._drawn_R_T, self._logprob_R_T, self._count_R.tolist(),
                                                      self._stop_R.tolist(), strict=True)]


def _uniforms(seeds: Sequence[int], count: int) -> NDArray[np.float64]:
    """``count`` numbers of [0, 1) for each seed, by Philox keyed with it."""
    return np.stack([np.random.Generator(np.random.Philox(key=seed)).random(count) for seed in seeds])


def _draw(logits_B_V: Tensor, uniform_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """One token a row and its log-probability: the likeliest, or where the cumulative sum passes u."""
    log_p_B_V = logits_B_V.log_softmax(-1)
    if uniform_B is None:
        token_B = log_p_B_V.argmax(-1)
    else:
        sum_B_V = log_p_B_V.exp().cumsum(-1, dtype=torch.float64)
        target_B_1 = uniform_B.to(sum_B_V.device)[:, None] * sum_B_V[:, -1:]
        token_B = torch.searchsorted(sum_B_V, target_B_1, right=True).squeeze(-1).clamp(max=sum_B_V.shape[-1] - 1)
    logprob_B = log_p_B_V.gather(-1, token_B[:, None]).squeeze(-1)
    if not bool(logprob_B.isfinite().all()):
        raise NonFiniteError("the policy's logits are not finite while sampling",
                             "lower the learning rate; the last good checkpoint is kept")
    return token_B, logprob_B
