"""Text to ids and back: the tokenizer, the chat template and the tags of the protocols.

Two kinds of added tokens keep what may be written by anyone apart from what only the template may
write. A *tag* (``<search>``) is an added token that text can contain, since the policy and the
environment both write tags; passages are stripped of tags by the tasks before they are shown. A
*chat marker* (``<|end|>``) is a special token: only the template writes it, and wherever prompt
contents or observations hold one, it is broken by a space before it is encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from turncredit.errors import CheckpointError, DataError

TAGS = tuple(f"<{slash}{name}>"
             for name in ("think", "search", "information", "answer", "tool", "result", "reasoning")
             for slash in ("", "/"))
END, PAD = "<|end|>", "<|pad|>"
MARKERS = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = ("{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def train_tokenizer(texts: Iterable[str], vocabulary: int,
                    special_tags: Sequence[str] = TAGS) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer in which a word with its leading space tends to be one token.

    Args:
        texts: what the policy will read and write; tags in them separate, they are not learned.
        vocabulary: the number of tokens at most, tags and chat markers included.
        special_tags: each becomes one token.

    Raises:
        DataError: the vocabulary has no room for the 256 bytes, the tags and the chat markers.
    """
    smallest = 256 + len(MARKERS) + len(special_tags)
    if vocabulary < smallest:
        raise DataError(f"vocabulary of {vocabulary} tokens: bytes and tags alone need {smallest}",
                        "raise policy.vocabulary")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(special_tags), special_tokens=list(MARKERS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    between_tags = re.compile("|".join(map(re.escape, (*special_tags, *MARKERS))))
    tokenizer.train_from_iterator((piece for text in texts for piece in between_tags.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in special_tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=TEMPLATE,
        additional_special_tokens=[m for m in MARKERS if m not in (END, PAD)],
        clean_up_tokenization_spaces=False)


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder or hub id.

    A tokenizer made here is read exactly as it was saved: beside a model's config.json, AutoTokenizer
    would give it the splitting rules of the model's family and so other tokens.

    Raises:
        CheckpointError: no readable fast tokenizer there.
    """
    try:
        plain = PreTrainedTokenizerFast
        tokenizer: Any = (plain if _saved_class(path) == plain.__name__ else AutoTokenizer).from_pretrained(str(path))
    except (OSError, ValueError, KeyError) as error:
        again = f"make it again: snakemake --cores 2 --force {path}; or " if isinstance(path, Path) else ""
        raise CheckpointError(f"{path}: no readable tokenizer: {_first_line(error)}",
                              f"{again}name another policy") from error
    if not tokenizer.is_fast:
        raise CheckpointError(f"{path}: the tokenizer has no fast version", "name a policy with tokenizer.json")
    return tokenizer


def _saved_class(path: str | Path) -> str | None:
    """The class that a local folder's tokenizer was saved as; None for a hub id or an older folder.

    Raises:
        ValueError: tokenizer_config.json holds no JSON object.
    """
    record = Path(path, "tokenizer_config.json")
    if not record.exists():
        return None
    settings = json.loads(record.read_bytes())
    if not isinstance(settings, dict):
        raise ValueError(f"{record.name} holds no JSON object")
    return settings.get("tokenizer_class")


class Completion(NamedTuple):
    """Which tokens complete a stop tag: ``surely`` holds one whole, ``possibly`` ends one (bool, by id)."""

    surely_V: NDArray[np.bool_]
    possibly_V: NDArray[np.bool_]


class Codec:
    """A tokenizer as the rollouts use it: text is encoded once, when it enters a transcript.

    Works for the tokenizers made here and for those of any byte-level hub model, whose tags span
    several tokens.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        end_ids: ids that end a turn, besides the tokenizer's own end-of-sequence id.

    Attributes:
        pad_id: fills up batches; may equal an end id, as nothing is inferred from it.
        end_ids: all ids that end a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, end_ids: Iterable[int] = ()) -> None:
        own = tokenizer.eos_token_id
        self.end_ids = frozenset(end_ids) | (frozenset() if own is None else {own})
        if not self.end_ids:
            raise DataError("the tokenizer has no end-of-sequence token", "name a policy whose tokenizer has one")
        if not tokenizer.chat_template:
            raise DataError("the tokenizer has no chat template", "name an instruction-tuned policy")
        self.tokenizer = tokenizer
        self.pad_id = min(self.end_ids) if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        markers = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special} - set(TAGS) - {""}
        self._marker = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))) or r"(?!)")
        self._reply: tuple[str, str] | None = None
        self.completion = lru_cache(maxsize=8)(self._completion)
        # an observation is measured before it is encoded, and siblings often see the same passages
        self._encode = lru_cache(maxsize=4096)(self._encode_anew)

    @classmethod
    def load(cls, path: str | Path) -> Codec:
        """The codec of a policy's folder or hub id; end ids of its generation config count too."""
        try:
            end = GenerationConfig.from_pretrained(str(path)).eos_token_id
        except OSError:  # a tokenizer's folder holds no generation config
            end = None
        return cls(load_tokenizer(path), [] if end is None else [end] if isinstance(end, int) else end)

    def encode_prompt(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Ids of a conversation by the chat template, up to where the assistant begins to speak."""
        safe = [message | {"content": self._neutral(message["content"])} for message in messages]
        return self._encode(self._render(safe))

    def encode_observation(self, text: str, role: str | None = None, *, ended: bool = False) -> tuple[int, ...]:
        """Ids of the environment's text, to be appended behind a sampled turn.

        Args:
            text: scaffolding tags included.
            role: None appends the text inside the assistant's turn (Search-R1); a chat role closes
                that turn, wraps the text as a message and opens the assistant's next turn.
            ended: the sampled turn already ends with an end id, so the template's is left out.

        Raises:
            DataError: the chat template rewrites earlier turns, so nothing can be appended.
        """
        if role is None:
            return self._encode(self._neutral(text))
        before, after = self._reply_scaffold(role)
        ids = self._encode(before + self._neutral(text) + after)
        return ids[1:] if ended and ids[0] in self.end_ids else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, tags and chat markers included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def count(self, text: str) -> int:
        """Number of tokens of an observation's text."""
        return len(self.encode_observation(text))

    def cut(self, text: str, max_tokens: int) -> str:
        """The longest beginning of ``text`` of at most ``max_tokens`` tokens, in whole characters."""
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = [end for _, end in found["offset_mapping"]]
        if len(ends) <= max_tokens and self.count(text) <= max_tokens:
            return text
        cut = text[: ends[min(max_tokens, len(ends)) - 1]] if max_tokens > 0 and ends else ""
        while cut and self.count(cut) > max_tokens:  # a token may end inside a character
            cut = cut[:-1]
        return cut

    def _completion(self, tags: tuple[str, ...]) -> Completion:
        """For each token of the vocabulary: does it hold a tag, may it end one begun before?"""
        size = len(self.tokenizer)
        surely_V, possibly_V = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        ends = tuple({tag[i:] for tag in tags for i in range(1, len(tag))})
        texts = self.tokenizer.backend_tokenizer.decode_batch([[i] for i in range(size)], skip_special_tokens=False)
        for token, text in enumerate(texts):
            surely_V[token] = any(tag in text for tag in tags)
            possibly_V[token] = text.startswith(ends)
        return Completion(surely_V, possibly_V & ~surely_V)

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))

    def _reply_scaffold(self, role: str) -> tuple[str, str]:
        """What the template writes before and after a message that answers the assistant's turn."""
        first, said, reply = "first-content", "assistant-content", "reply-content"
        start = [{"role": "user", "content": first}]
        whole = self._render([*start, {"role": "assistant", "content": said}, {"role": role, "content": reply}])
        head = self._render(start) + said
        if not whole.startswith(head) or whole.count(reply) != 1:
            raise DataError("the chat template rewrites earlier turns: a reply cannot be appended to what was sampled",
                            "use a policy whose template only appends")
        before, after = whole[len(head):].split(reply)
        return before, after

    def _encode_anew(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _neutral(self, text: str) -> str:
        """``text`` with each chat marker broken by a space, so that none becomes a special token."""
        while self._marker.search(text):
            text = self._marker.sub(lambda found: f"{found[0][0]} {found[0][1:]}" if len(found[0]) > 1 else " ", text)
        return text


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
