"""Batched sampling with transformers, with a prefix cache that is kept between calls.

Each row has its own random stream (Philox, keyed by the row's seed): token n is sampled by inverting
the cumulative distribution at number n of the stream. So a sample is the same alone and in any
batch. A finished row leaves the batch at once. Its keys and values stay in the cache, and the next
call reuses them for contexts that start with its ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from turncredit.errors import CheckpointError, ConfigError, NonFiniteError
from turncredit.policy.engines.base import Sample, Weights, check_request
from turncredit.policy.engines.kv_cache import KVCache
from turncredit.policy.engines.weights import named_weights
from turncredit.policy.model import head_logits
from turncredit.policy.tokenizer import Codec
from turncredit.types import TurnStop

CONTINUE, TAG, END, LENGTH, CHECK_TEXT = range(5)
STOPS = {TAG: TurnStop.TAG, END: TurnStop.END, LENGTH: TurnStop.LENGTH}
ID_BYTES = 4
MOST_LOGITS = 2**26  # computed at once: 256 MiB as float32
Ints = NDArray[np.int64]


class HFEngine:
    """An ``Engine`` for any causal language model with full attention.

    Args:
        model: sampled from; it may be trained between calls.
        codec: encodes and decodes with the policy's tokenizer.

    Raises:
        ConfigError: a layer has another kind of attention.
    """

    def __init__(self, model: PreTrainedModel, codec: Codec) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ConfigError(f"{type(model).__name__} has attention layers of kind {', '.join(sorted(kinds))}",
                              "use a policy with full attention in every layer")
        self._model, self._codec = model, codec
        self._cache = KVCache(model)
        self._cached_P: list[bytes] = []  # cached ids (int32) of each slot
        self.weight_version = 0

    def reset_prefix_cache(self) -> None:
        """See ``Engine``."""
        self._cached_P = []

    @torch.no_grad()
    def update_weights(self, weights: Weights, version: int) -> None:
        """See ``Engine``; tensors that share the model's memory, like the trainer's, need no copy."""
        own, remedy = self._model.state_dict(), "give the engine all weights of its own policy"
        missing = {name for name, _ in self._model.named_parameters()}
        for name, tensor in named_weights(weights):
            if name not in own or own[name].shape != tensor.shape:
                raise CheckpointError(f"the model has no weight {name} of shape {tuple(tensor.shape)}", remedy)
            if own[name].data_ptr() != tensor.data_ptr():
                own[name].copy_(tensor)
            missing.discard(name)
        if missing:
            raise CheckpointError(f"weights are missing: {', '.join(sorted(missing)[:3])}", remedy)
        self.reset_prefix_cache()
        self.weight_version = version

    def sleep(self) -> None:
        """See ``Engine``; frees the cache only, because the model belongs to the trainer."""
        self._cache, self._cached_P = KVCache(self._model), []

    @torch.inference_mode()
    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...]) -> list[Sample]:
        """See ``Engine``."""
        check_request(contexts, seeds, max_tokens, temperature)
        if not contexts:
            return []
        ids_R = [np.asarray(context, np.int32).tobytes() for context in contexts]
        uniform_R_T = None if seeds is None else _uniforms(seeds, max_tokens)
        try:
            turns = self._sample(ids_R, uniform_R_T, max_tokens, temperature, stop_tags)
        except BaseException:  # a failed call may leave anything in the cache, NaN too
            self._cache, self._cached_P = KVCache(self._model), []
            raise
        self._cached_P = turns.cached(ids_R)
        return turns.samples(self.weight_version)

    def _sample(self, ids_R: list[bytes], uniform_R_T: NDArray[np.float64] | None, max_tokens: int,
                temperature: float, stop_tags: tuple[str, ...]) -> _Turns:
        """Sample the turns of all contexts."""
        slot_B: Tensor | None
        row_P, hidden_U_H, slot_B = self._prefill(ids_R, max_tokens)
        vocabulary = self._model.get_output_embeddings().weight.shape[0]
        stopper = _Stopper(self._codec, stop_tags, vocabulary)
        turns = _Turns(ids_R, row_P, max_tokens, uniform_R_T)
        while True:
            token_B, logprob_B = self._draw(hidden_U_H, slot_B, turns.uniform_B(), temperature, vocabulary)
            live = turns.append(token_B, logprob_B, stopper)
            if not len(live):
                return turns
            token_B = token_B[turns.retire(live, self._cache)]
            hidden_U_H = self._forward(token_B[:, None], turns.length_B)[:, 0]
            slot_B = None

    def _draw(self, hidden_U_H: Tensor, slot_B: Tensor | None, uniform_B: Tensor | None, temperature: float,
              vocabulary: int) -> tuple[Tensor, Tensor]:
        """Draw each row's token and its log-probability; at most ``MOST_LOGITS`` logits are in memory at once.

        ``slot_B`` is the hidden state of each row, where equal contexts share one; None: row b has state b.
        """
        count, rows = len(hidden_U_H) if slot_B is None else len(slot_B), max(1, MOST_LOGITS // vocabulary)
        if count <= rows:
            logits_U_V = head_logits(self._model, hidden_U_H)
            return _draw((logits_U_V if slot_B is None else logits_U_V[slot_B]) / temperature, uniform_B)
        hidden_B_H = hidden_U_H if slot_B is None else hidden_U_H[slot_B]
        drawn = [_draw(head_logits(self._model, hidden_B_H[start:start + rows]) / temperature,
                       None if uniform_B is None else uniform_B[start:start + rows])
                 for start in range(0, count, rows)]
        return torch.cat([token_C for token_C, _ in drawn]), torch.cat([logprob_C for _, logprob_C in drawn])

    def _prefill(self, ids_R: list[bytes], room: int) -> tuple[Ints, Tensor, Tensor]:
        """Compute the keys and values of all contexts that are not cached yet, and the hidden state after each.

        Equal contexts are computed once and copied. The cache keeps ``room`` free columns.

        Returns:
            row_P: the row in each cache slot; hidden_U_H and slot_P: the hidden state after each different context,
            and which of them each cache slot has.
        """
        device = self._model.device
        cached_P = self._cached_P
        rows_of: dict[bytes, list[int]] = {}
        for row, ids in enumerate(ids_R):
            rows_of.setdefault(ids, []).append(row)
        prefixes = {ids: _longest_prefix(ids, cached_P) for ids in rows_of}
        order = _order_by_slot(list(rows_of), prefixes)
        start_B = torch.tensor([prefixes[ids][1] for ids in order])
        count_B = torch.tensor([len(ids) // ID_BYTES for ids in order]) - start_B
        used, most = int(start_B.max()), int((start_B + count_B).max())
        self._cache.reserve(len(ids_R), max(most + room, used + int(count_B.max())), used)
        moved = [(source, target) for target, (source, start) in enumerate(prefixes[ids] for ids in order)
                 if start and source != target]
        self._copy(moved, used)

        token_B_Q = np.full((len(order), int(count_B.max())), self._codec.pad_id, np.int64)
        for slot, ids in enumerate(order):
            new = np.frombuffer(ids, np.int32)[prefixes[ids][1]:]
            token_B_Q[slot, :len(new)] = new
        hidden_B_Q_H = self._forward(torch.from_numpy(token_B_Q).to(device), start_B, count_B)
        hidden_U_H = hidden_B_Q_H[torch.arange(len(order)), count_B - 1]

        copies = [(slot, row) for slot, ids in enumerate(order) for row in rows_of[ids][1:]]
        self._copy([(slot, target) for target, (slot, _) in enumerate(copies, len(order))], most)
        row_P = [rows_of[ids][0] for ids in order] + [row for _, row in copies]
        slot_P = torch.tensor([*range(len(order)), *(slot for slot, _ in copies)], device=device)
        return np.array(row_P), hidden_U_H, slot_P

    def _copy(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        source, target = torch.tensor(moves, dtype=torch.long, device=self._model.device).reshape(-1, 2).unbind(1)
        self._cache.copy(source, target, used)

    def _forward(self, token_B_Q: Tensor, start_B: Tensor, count_B: Tensor | None = None) -> Tensor:
        """Return hidden states [B, Q, H] of new tokens; slot b already holds ``start_B[b]`` tokens.

        Tokens beyond ``count_B`` of a slot are padding; their cache entries are overwritten before they
        are attended to.
        """
        start_B = start_B.to(token_B_Q.device)
        position_B_Q = start_B[:, None] + torch.arange(token_B_Q.shape[1], device=start_B.device)
        if count_B is not None:  # a padding token also needs a valid position
            position_B_Q = position_B_Q.minimum((start_B + count_B.to(start_B.device) - 1)[:, None])
        output = self._model.base_model(
            input_ids=token_B_Q, attention_mask=self._cache.prepare_write(start_B, token_B_Q.shape[1]),
            position_ids=position_B_Q, past_key_values=self._cache, use_cache=True)
        return output.last_hidden_state


class _Stopper:
    """Decides for each row whether its last token ended the turn."""

    def __init__(self, codec: Codec, tags: tuple[str, ...], vocabulary: int) -> None:
        self._codec, self._tags = codec, tags
        tag_tokens = codec.tag_tokens(tags)
        size = len(tag_tokens.complete_V)
        self._kind_V = np.full(max(size, vocabulary), CONTINUE, np.int8)  # a model may have spare embeddings
        self._kind_V[list(codec.end_ids)] = END
        self._kind_V[:size][tag_tokens.partial_V] = CHECK_TEXT
        self._kind_V[:size][tag_tokens.complete_V] = TAG

    def __call__(self, drawn_B_T: NDArray[np.int32]) -> NDArray[np.int8]:
        """Return CONTINUE, TAG or END for each row of the turns' tokens so far."""
        kind_B = self._kind_V[drawn_B_T[:, -1]]
        for b in np.flatnonzero(kind_B == CHECK_TEXT):
            text = self._codec.decode(drawn_B_T[b].tolist())
            kind_B[b] = TAG if any(tag in text for tag in self._tags) else CONTINUE
        return kind_B


class _Turns:
    """The turns being sampled. A row (_R) keeps its index; its slot (_P) in the cache may change.

    Slots 0 .. B-1 hold the B active rows, whose turns have not ended.
    """

    def __init__(self, ids_R: list[bytes], row_P: Ints, max_tokens: int,
                 uniform_R_T: NDArray[np.float64] | None) -> None:
        rows = len(ids_R)
        self._uniform_R_T = uniform_R_T
        self._drawn_R_T = np.zeros((rows, max_tokens), np.int32)
        self._logprob_R_T = np.zeros((rows, max_tokens), np.float32)
        self._count_R = np.zeros(rows, np.int64)
        self._stop_R = np.zeros(rows, np.int8)
        self._row_P = row_P
        self._context_R = np.array([len(ids) // ID_BYTES for ids in ids_R])
        self._active, self._t = rows, 0

    @property
    def length_B(self) -> Tensor:
        """Number of cached tokens of each active row; its last token is not cached yet."""
        return torch.from_numpy(self._context_R[self._row_P[:self._active]] + self._t - 1)

    def uniform_B(self) -> Tensor | None:
        """Each active row's random number for its next token; None if greedy."""
        if self._uniform_R_T is None:
            return None
        return torch.from_numpy(self._uniform_R_T[self._row_P[:self._active], self._t])

    def append(self, token_B: Tensor, logprob_B: Tensor, stopper: _Stopper) -> Ints:
        """Append one token to each active row; return the slots of the rows that continue."""
        rows, t = self._row_P[:self._active], self._t
        self._drawn_R_T[rows, t], self._logprob_R_T[rows, t] = token_B.cpu(), logprob_B.cpu()
        stop_B = stopper(self._drawn_R_T[rows, :t + 1])
        self._t = t + 1
        if self._t == self._drawn_R_T.shape[1]:
            stop_B[stop_B == CONTINUE] = LENGTH
        self._stop_R[rows], self._count_R[rows] = stop_B, self._t
        return np.flatnonzero(stop_B == CONTINUE)

    def retire(self, live: Ints, cache: KVCache) -> Tensor:
        """Move the last continuing rows into the slots of finished ones; return where each row now kept was before."""
        order = np.arange(self._active)
        if len(live) < self._active:
            finished = np.ones(len(live), np.bool_)  # of the remaining slots
            finished[live[live < len(live)]] = False
            left, right = np.flatnonzero(finished), live[live >= len(live)]
            order[left], order[right] = right, left
            used = int(self._context_R.max()) + self._t - 1
            target, source = torch.from_numpy(np.stack([np.r_[left, right], np.r_[right, left]]))
            cache.copy(source, target, used)
            self._row_P[:self._active] = self._row_P[order]
            self._active = len(live)
        return torch.from_numpy(order[:self._active])

    def cached(self, ids_R: list[bytes]) -> list[bytes]:
        """The cached ids of each slot: all but the turn's last token."""
        return [ids_R[r] + self._drawn_R_T[r, :self._count_R[r] - 1].tobytes() for r in self._row_P]

    def samples(self, weight_version: int) -> list[Sample]:
        """The turns as samples, by row."""
        return [Sample(tuple(ids[:count].tolist()), tuple(logprobs[:count].tolist()), STOPS[stop], weight_version)
                for ids, logprobs, count, stop in zip(self._drawn_R_T, self._logprob_R_T, self._count_R.tolist(),
                                                      self._stop_R.tolist(), strict=True)]


def _longest_prefix(context: bytes, cached_P: Sequence[bytes]) -> tuple[int, int]:
    """Return the slot with the longest cached prefix of ``context``, and the prefix's length in tokens (0: none).

    The context's last token is always computed, because its forward pass gives the first logits.
    """
    slot = max((p for p, ids in enumerate(cached_P) if context.startswith(ids)),
               key=lambda p: len(cached_P[p]), default=None)
    return (0, 0) if slot is None else (slot, min(len(cached_P[slot]), len(context) - ID_BYTES) // ID_BYTES)


def _order_by_slot(contexts: Sequence[bytes], prefixes: dict[bytes, tuple[int, int]]) -> list[bytes]:
    """Order the contexts so that as many as possible keep the slot of their cached prefix."""
    at_slot: dict[int, bytes] = {}
    for ids in contexts:
        source, start = prefixes[ids]
        if start and source < len(contexts):
            at_slot.setdefault(source, ids)
    staying = set(at_slot.values())
    others = iter([ids for ids in contexts if ids not in staying])
    return [at_slot[slot] if slot in at_slot else next(others) for slot in range(len(contexts))]


def _uniforms(seeds: Sequence[int], count: int) -> NDArray[np.float64]:
    """Return ``count`` numbers in [0, 1) for each seed, from a Philox generator keyed by it."""
    return np.stack([np.random.Generator(np.random.Philox(key=seed)).random(count) for seed in seeds])


def _draw(logits_B_V: Tensor, uniform_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw one token per row, and its log-probability: the most likely, or where the cumulative sum passes u."""
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
