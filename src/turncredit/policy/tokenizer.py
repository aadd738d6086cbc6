"""Tokenizer, chat template and protocol tags: encodes text once, when it enters a transcript.

There are two kinds of added tokens. A *tag* (``<search>``) is an ordinary added token: the policy and
the environment both write tags, and tasks remove them from retrieved passages. A *chat marker*
(``<|end|>``) is a special token that only the template may write: in prompt contents and observations
it is escaped with a space before encoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from turncredit.errors import CheckpointError, DataError
from turncredit.tasks.registry import all_tags

END, PAD = "<|end|>", "<|pad|>"
MARKERS = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = ("{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def train_tokenizer(texts: Iterable[str], vocabulary: int,
                    special_tags: Sequence[str] | None = None) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer in which a word with its leading space is usually one token.

    Args:
        texts: training texts; tags and chat markers in them are separators and are not learned.
        vocabulary: largest number of tokens, including tags and chat markers.
        special_tags: each becomes one token; None: the tags of all registered tasks.

    Raises:
        DataError: the vocabulary is too small for the 256 bytes, the tags and the chat markers.
    """
    special_tags = all_tags() if special_tags is None else special_tags
    smallest = 256 + len(MARKERS) + len(special_tags)
    if vocabulary < smallest:
        raise DataError(f"a vocabulary of {vocabulary} tokens is too small: bytes, tags and markers need {smallest}",
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
    """Load the fast tokenizer of a folder or hub id.

    A tokenizer made by ``train_tokenizer`` is loaded exactly as saved. AutoTokenizer would replace its
    splitting rules by those of the model family in config.json, and so give other tokens.

    Raises:
        CheckpointError: there is no readable fast tokenizer.
    """
    try:
        plain = PreTrainedTokenizerFast
        tokenizer: Any = (plain if _saved_class(path) == plain.__name__ else AutoTokenizer).from_pretrained(str(path))
    except (OSError, ValueError, KeyError) as error:
        again = f"make it again: snakemake --cores 2 --force {path}; or " if isinstance(path, Path) else ""
        raise CheckpointError(f"{path}: no readable tokenizer: {_first_line(error)}",
                              f"{again}use another policy") from error
    if not tokenizer.is_fast:
        raise CheckpointError(f"{path}: the tokenizer has no fast version", "use a policy with tokenizer.json")
    return tokenizer


def _saved_class(path: str | Path) -> str | None:
    """Return the class name that a local folder's tokenizer was saved with; None for a hub id or an older folder.

    Raises:
        ValueError: tokenizer_config.json is not a JSON object.
    """
    record = Path(path, "tokenizer_config.json")
    if not record.exists():
        return None
    settings = json.loads(record.read_bytes())
    if not isinstance(settings, dict):
        raise ValueError(f"{record.name} is not a JSON object")
    return settings.get("tokenizer_class")


class TagTokens(NamedTuple):
    """Which tokens can complete a stop tag, by id.

    Attributes:
        complete_V: the token's text contains a whole tag.
        partial_V: it may end a tag that earlier tokens began; the decoded text decides.
    """

    complete_V: NDArray[np.bool_]
    partial_V: NDArray[np.bool_]


class Codec:
    """Encodes prompts and observations, and decodes turns.

    It works with tokenizers made by ``train_tokenizer`` and with those of byte-level hub models, in
    which a tag spans several tokens.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        end_ids: ids that end a turn, in addition to the tokenizer's end-of-sequence id and the chat template's end of a
            turn (a base model's template may end a turn with another token than its text).

    Raises:
        DataError: no end id; no chat template, or one in which turns cannot be credited: it opens a tag in the model's
            place, so that a right turn would look malformed.

    Attributes:
        pad_id: id of padding; it may equal an end id, because padding is always masked.
        end_ids: all ids that end a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, end_ids: Iterable[int] = ()) -> None:
        if not tokenizer.chat_template:
            raise DataError("the tokenizer has no chat template", "use an instruction-tuned policy")
        self.tokenizer = tokenizer
        own = tokenizer.eos_token_id
        self.end_ids = frozenset(end_ids) | (frozenset() if own is None else {own}) | self._template_end()
        if not self.end_ids:
            raise DataError("the tokenizer has no end-of-sequence token", "use a policy whose tokenizer has one")
        opened = self._render([{"role": "user", "content": "?"}]).rpartition("?")[2]
        if tags := [tag for tag in all_tags() if tag in opened]:
            raise DataError(f"the chat template writes {tags[0]} at the start of the model's turn, so the turn itself "
                            "lacks it and every right turn would count as malformed",
                            "use a policy or a template that leaves the turn to the model (without a thinking mode)")
        self.pad_id = min(self.end_ids) if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        markers = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special} - set(all_tags()) - {""}
        self._marker = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))) or r"(?!)")
        self._reply: tuple[str, str] | None = None
        self.tag_tokens = lru_cache(maxsize=8)(self._tag_tokens)
        # an observation is counted before it is encoded, and siblings often see the same passages
        self._encode = lru_cache(maxsize=4096)(self._encode_uncached)

    @classmethod
    def load(cls, path: str | Path) -> Codec:
        """Load the codec of a policy's folder or hub id, including the end ids of its generation config."""
        try:
            end = GenerationConfig.from_pretrained(str(path)).eos_token_id
        except OSError:  # a tokenizer's folder has no generation config
            end = None
        return cls(load_tokenizer(path), [] if end is None else [end] if isinstance(end, int) else end)

    def encode_prompt(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Return the ids of a conversation in the chat template, up to the start of the assistant's turn."""
        safe = [message | {"content": self._escape_markers(message["content"])} for message in messages]
        return self._encode(self._render(safe))

    def encode_observation(self, text: str, role: str | None = None, *, ended: bool = False) -> tuple[int, ...]:
        """Return the ids of the environment's text, to be appended to a sampled turn.

        Args:
            text: including its tags.
            role: None appends the text inside the assistant's turn (Search-R1). A chat role closes that
                turn, wraps the text as a message and opens the assistant's next turn.
            ended: the sampled turn already ends with an end id, so the template's end id is omitted.

        Raises:
            DataError: the chat template rewrites earlier turns, so text cannot be appended.
        """
        if role is None:
            return self._encode(self._escape_markers(text))
        before, after = self._reply_scaffold(role)
        ids = self._encode(before + self._escape_markers(text) + after)
        return ids[1:] if ended and ids[0] in self.end_ids else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including tags and chat markers."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def count(self, text: str) -> int:
        """Return the number of tokens of an observation's text."""
        return len(self.encode_observation(text))

    def cut(self, text: str, max_tokens: int) -> str:
        """Return the longest prefix of ``text`` that has at most ``max_tokens`` tokens, in whole characters."""
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = [end for _, end in encoding["offset_mapping"]]
        if len(ends) <= max_tokens and self.count(text) <= max_tokens:
            return text
        cut = text[: ends[min(max_tokens, len(ends)) - 1]] if max_tokens > 0 and ends else ""
        while cut and self.count(cut) > max_tokens:  # a token may end inside a character
            cut = cut[:-1]
        return cut

    def _tag_tokens(self, tags: tuple[str, ...]) -> TagTokens:
        size = len(self.tokenizer)
        complete_V, partial_V = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        ends = tuple({tag[i:] for tag in tags for i in range(1, len(tag))})
        texts = self.tokenizer.backend_tokenizer.decode_batch([[i] for i in range(size)], skip_special_tokens=False)
        for token, text in enumerate(texts):
            complete_V[token] = any(tag in text for tag in tags)
            partial_V[token] = text.startswith(ends)
        return TagTokens(complete_V, partial_V & ~complete_V)

    def _render(self, messages: Sequence[dict[str, str]], *, to_be_continued: bool = True) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False,
                                                          add_generation_prompt=to_be_continued))
        except TemplateError as error:
            roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
            raise DataError(f"the chat template refuses a conversation of {roles}: {_first_line(error)}",
                            "use a policy whose template takes these roles (`tool_search` has a system message)"
                            ) from error

    def _template_end(self) -> frozenset[int]:
        """The special token with which the template ends an assistant's turn, if it has one."""
        said = "assistant-content"
        rendered = self._render([{"role": "user", "content": "?"}, {"role": "assistant", "content": said}],
                                to_be_continued=False)
        ids = self.tokenizer(rendered.rpartition(said)[2], add_special_tokens=False, verbose=False)["input_ids"]
        special = {token for token, added in self.tokenizer.added_tokens_decoder.items() if added.special}
        return frozenset(ids[:1]) & special

    def _reply_scaffold(self, role: str) -> tuple[str, str]:
        """Return the template's text before and after a message that follows the assistant's turn."""
        first, said, reply = "first-content", "assistant-content", "reply-content"
        start = [{"role": "user", "content": first}]
        rendered = self._render([*start, {"role": "assistant", "content": said}, {"role": role, "content": reply}])
        head = self._render(start) + said
        if not rendered.startswith(head) or rendered.count(reply) != 1:
            raise DataError("the chat template rewrites earlier turns: no message can be appended to a sampled turn",
                            "use a policy whose template only appends")
        before, after = rendered[len(head):].split(reply)
        return before, after

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _escape_markers(self, text: str) -> str:
        """Break each chat marker in ``text`` with a space, so that none is encoded as a special token."""
        while self._marker.search(text):
            text = self._marker.sub(lambda match: f"{match[0][0]} {match[0][1:]}" if len(match[0]) > 1 else " ", text)
        return text


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
