"""Types shared by all packages: items, questions, documents, turns, transcripts, groups.

One word for each thing. An *item* is what an episode is about, e.g. a question. An *episode* is played turn by
turn; its *transcript* is what was sampled and observed. A *group* has the transcripts of one item: chains, or the
*leaves* of a tree, whose *nodes* are the distinct turns. The mathematics calls a transcript a *trajectory*; training
pads it as a *row*.

Each token of a transcript has three masks, with three names::

    tokens          prompt | <search> a </search> | <information> b </information> | <answer> c </answer> | padding
    attention_mask     1   |          1           |               1                |          1           |    0
    loss_mask          0   |          1           |               0                |          1           |    0
    turn_id           -1   |          0           |               0                |          1           |

``attention_mask`` is what the model sees; ``training.batch`` makes it when it pads rows. ``loss_mask`` is what is
trained: the tokens that the policy sampled; a row of a tree drops the turns that another row trains
(``credit.rows``). ``turn_id`` is the turn that gets the credit: -1 for the prompt, and for an observation the turn
that it followed.

The critic predicts values of the loss tokens, or of the whole response, which is where ``turn_id`` is not -1
(``training.gae_tokens``, ``credit.rows.Row.value_mask``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class TurnStop(StrEnum):
    """Why the engine stopped sampling a turn, as the engine reports it (never inferred from the last id)."""

    TAG = "tag"  # a closing action tag was completed
    END = "end"  # the end-of-turn token was sampled
    LENGTH = "length"  # the turn's token limit was reached


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"  # the agent gave an answer (right or wrong)
    TURN_LIMIT = "turn_limit"  # N_max turns went by without an answer
    CONTEXT_OVERFLOW = "context_overflow"  # the next turn would not fit the context window
    INVALID_LIMIT = "invalid_limit"  # the task's limit of invalid turns was reached


class Item(Protocol):
    """What one episode is about: a question, a game's level. Each task has an item type of its own."""

    @property
    def id(self) -> str:
        """Unique within its data set and split."""
        ...

    @property
    def dataset(self) -> str:
        """The data set that it belongs to."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """A retrieved passage: ``id``, ``title``, ``text`` and the retriever's score."""

    id: str
    title: str
    text: str
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment appends after a turn.

    Attributes:
        text: the appended text, scaffolding included; empty at the end of an episode.
        data: what the task's own rewards read beside the text, e.g. the passages shown; immutable.
        error: name of the fault that the text reports to the agent, or None.
        role: chat role of the text as a message of its own; None appends it inside the assistant's
            turn.
    """

    text: str = ""
    data: Any = ()
    error: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn and the observation that followed it.

    Attributes:
        text: the decoded sampled tokens (for parsers and rewards only; never encoded again).
        sampled_ids: the ids that the engine sampled, in order.
        logprobs: log-probability of each sampled id under the sampling policy at the run's temperature,
            log softmax(logits / T); greedy decoding, too, records it at T.
        stop: why sampling ended.
        observation: what the environment appended.
        observation_ids: the ids of its text; encoded once, when appended.
        weight_version: the version of the weights that sampled it.
    """

    text: str
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: TurnStop
    observation: Observation = Observation()
    observation_ids: tuple[int, ...] = ()
    weight_version: int = 0

    def __post_init__(self) -> None:
        if not self.sampled_ids:
            raise ValueError("a turn has at least one sampled token")
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.sampled_ids)} sampled ids but {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole episode: the prompt and its turns. All per-token lists have equal length."""

    item_id: str
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    stop: StopReason

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.turns:
            raise ValueError("a transcript has a prompt and at least one turn")

    @property
    def ids(self) -> list[int]:
        """Every token in order: prompt, then each turn's sampled and observation tokens."""
        ids = list(self.prompt_ids)
        for turn in self.turns:
            ids += turn.sampled_ids
            ids += turn.observation_ids
        return ids

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """``loss_mask_T``: true on sampled tokens, false on prompt and observation tokens."""
        lengths = [len(self.prompt_ids), *(n for t in self.turns for n in (len(t.sampled_ids), len(t.observation_ids)))]
        return np.repeat([False, *[True, False] * len(self.turns)], lengths)

    @property
    def turn_id(self) -> NDArray[np.int64]:
        """``turn_id_T``: the turn of each token, from 0; -1 on the prompt."""
        lengths = [len(self.prompt_ids), *(len(t.sampled_ids) + len(t.observation_ids) for t in self.turns)]
        return np.repeat(np.arange(-1, len(self.turns)), lengths)

    @property
    def logprobs(self) -> list[float]:
        """The sampler's log-probability on sampled tokens, 0.0 elsewhere."""
        logprobs = [0.0] * len(self.prompt_ids)
        for turn in self.turns:
            logprobs += turn.logprobs
            logprobs += [0.0] * len(turn.observation_ids)
        return logprobs

    @property
    def sampled_count(self) -> int:
        """Number of sampled tokens, |y| of Eq. 3."""
        return sum(len(turn.sampled_ids) for turn in self.turns)

    @property
    def response_count(self) -> int:
        """Number of tokens after the prompt: sampled ones and observations."""
        return sum(len(turn.sampled_ids) + len(turn.observation_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """All episodes of one item that are compared with one another: chains or a tree.

    A tree is written as its leaves. ``node_L_K[l][k]`` numbers the sampled turn k of leaf l. Leaves
    that share a turn have the same number there (and the same turns before it); in a group of chains
    all numbers differ. Numbers run from 0 without gaps in the order of first appearance.

    Attributes:
        transcripts: L leaves, all of the same item.
        node_L_K: ragged, one tuple per leaf with one number per turn.
    """

    transcripts: tuple[Transcript, ...]
    node_L_K: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.transcripts:
            raise ValueError("a group has at least one transcript")
        if len({t.item_id for t in self.transcripts}) != 1:
            raise ValueError("a group never mixes questions")
        parent: dict[int, int] = {}
        seen: dict[int, Turn] = {}
        for transcript, nodes in zip(self.transcripts, self.node_L_K, strict=True):
            if len(transcript.turns) != len(nodes):
                raise ValueError("node_L_K has one number for each turn of each leaf")
            for k, node in enumerate(nodes):
                before = nodes[k - 1] if k else -1
                if parent.setdefault(node, before) != before:
                    raise ValueError(f"turn {node} has two parents, {parent[node]} and {before}")
                if seen.setdefault(node, transcript.turns[k]).sampled_ids != transcript.turns[k].sampled_ids:
                    raise ValueError(f"turn {node} holds different tokens in two leaves")
        if sorted(parent) != list(range(len(parent))):
            raise ValueError("turn numbers run from 0 without gaps")

    @classmethod
    def of_chains(cls, transcripts: Sequence[Transcript]) -> Group:
        """A group of independent chains: no turn is shared."""
        nodes, start = [], 0
        for transcript in transcripts:
            nodes.append(tuple(range(start, start + len(transcript.turns))))
            start += len(transcript.turns)
        return cls(tuple(transcripts), tuple(nodes))

    @property
    def item_id(self) -> str:
        """The id of the item that all leaves play."""
        return self.transcripts[0].item_id

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Each distinct turn once, by node number."""
        turn_of = {n: t for leaf, nodes in zip(self.transcripts, self.node_L_K, strict=True)
                   for n, t in zip(nodes, leaf.turns, strict=True)}
        return tuple(turn_of[n] for n in range(len(turn_of)))

    @property
    def turn_count(self) -> int:
        """Number of distinct turns."""
        return 1 + max(node for node_K in self.node_L_K for node in node_K)

    @property
    def is_tree(self) -> bool:
        """Whether leaves share a turn."""
        return self.turn_count < sum(len(node_K) for node_K in self.node_L_K)

    @property
    def sampled_count(self) -> int:
        """Distinct sampled tokens: a shared turn counts once, as it was sampled once."""
        return sum(len(turn.sampled_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a question's plan: a gold query, and the entity or answer in the passage that it retrieves."""

    query: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Question:
    """The item of the question-answering tasks: a question with its accepted answers.

    ``plan`` is for demonstrations only.
    """

    id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    hops: int
    plan: tuple[Hop, ...]
