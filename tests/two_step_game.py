"""A game of two turns of one token each, whose expected metrics, gradients, Q and V are computed exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.policies import codec, model
from turncredit.config.algorithm import Algorithm
from turncredit.config.load import RunConfig
from turncredit.config.task import RewardConfig, TaskConfig
from turncredit.config.training import TrainingConfig
from turncredit.credit_bench.play import Player
from turncredit.policy.engines.base import Sample
from turncredit.policy.engines.hf import HFEngine
from turncredit.rollout.state import PendingTurn, State, start
from turncredit.tasks.env import Message, Service, Step
from turncredit.tasks.plugin import Metric, Rewards, ServiceSettings, TaskPlugin
from turncredit.types import Observation, StopReason, Transcript, TurnStop

VOCABULARY = 420


@dataclass(frozen=True)
class Board:
    id: str
    dataset: str = "line"


class GameConfig(TaskConfig):
    name: Literal["two_step"] = "two_step"


@dataclass
class Game:
    config: GameConfig
    board: Board
    turns: int = 0

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": self.board.id}]

    def request(self, text: str) -> None:
        return None

    def step(self, text: str, stop: TurnStop, response: None) -> Step:
        self.turns += 1
        seen = Observation("a" if len(text) % 2 == 0 else "b")
        return Step(seen, StopReason.TURN_LIMIT if self.turns == self.config.max_turns else None)

    def fork(self) -> Game:
        return replace(self)


@dataclass(frozen=True)
class GameTask:
    config: GameConfig
    stop_tags: tuple[str, ...] = ()

    def start(self, item: Board, count_tokens: object, cut: object) -> Game:
        return Game(self.config, item)


def values_of(first: str, second: str) -> tuple[float, float]:
    """R^I of the first turn, and R^O: the game is won by an even turn and then an odd one."""
    even = len(first) % 2 == 0
    return 0.5 * even, float(even and len(second) % 2 == 1)


@dataclass(frozen=True)
class GameReward:
    content: str

    def __call__(self, played: Transcript, item: Board) -> Rewards:
        shaped, won = values_of(played.turns[0].text, played.turns[1].text)
        paid = shaped if self.content == "full" else 0.0
        return Rewards((paid, 0.0), won, {"won": won}, {"won": won}, {})


@contextmanager
def no_services(config: TaskConfig, settings: ServiceSettings) -> Iterator[Mapping[str, Service]]:
    yield {}


def boards(data: Path, split: str, datasets: Sequence[str] | None) -> list[Board]:
    return [Board(f"board {n}") for n in range(32)]


GAME = TaskPlugin(
    name="two_step", config=GameConfig, rewards=RewardConfig, make_task=GameTask,
    make_reward=lambda task, content, values: GameReward(content), open_services=no_services, read_items=boards,
    tags=(),
    metrics=(Metric("won"),), components=("won",), columns={}, datasets=("line",),
    stop_reasons=(StopReason.TURN_LIMIT,))
TASK = GameConfig(max_turns=2, max_turn_tokens=1, max_context_tokens=64)
BOARDS = boards(Path(), "train", None)


def player(policy: PreTrainedModel, seed: int = 0, **training: object) -> Player:
    """A player of the game, for tests that have registered ``GAME``."""
    settings = TrainingConfig.model_validate({"tokens_per_step": 96, "group_size": 8, "kl_coefficient": 0.0} | training)
    algorithm = Algorithm(estimator="group", placement="terminal", content="outcome", rollout="chains")
    config = RunConfig(scale="test", experiment="game", arm="any", seed=0, algorithm=algorithm, task=TASK,
                       rewards=RewardConfig(), train_on=("line",), training=settings, device="cpu", threads=1)
    return Player(config, HFEngine(policy, codec()), {}, codec(), seed)


def policy() -> PreTrainedModel:
    return model(vocabulary=VOCABULARY)


def last_probabilities(policy: PreTrainedModel, contexts: Sequence[Sequence[int]]) -> Tensor:
    """The distribution of the next token after each context, [contexts, V]."""
    length_B = torch.tensor([len(ids) for ids in contexts])
    ids_B_T = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in contexts], batch_first=True)
    mask_B_T = (torch.arange(ids_B_T.shape[1]) < length_B[:, None]).long()
    logits_B_T_V = policy(ids_B_T, attention_mask=mask_B_T).logits
    return logits_B_T_V[torch.arange(len(contexts)), length_B - 1].softmax(-1)


def after(state: State, token: int) -> State:
    """The state after a turn of one token."""
    stop = TurnStop.END if token in codec().end_ids else TurnStop.LENGTH
    return PendingTurn.of(state, (0,), Sample((token,), (0.0,), stop), codec()).resolve(None, codec())


@dataclass(frozen=True)
class Exact:
    """Everything about one board.

    Attributes:
        first_V, second_V_V: probabilities of the first token, and of the second after each first.
        shaped_V: R^I of each first token.
        won_V_V: R^O of each pair of tokens.
    """

    first_V: Tensor
    second_V_V: Tensor
    shaped_V: Tensor
    won_V_V: Tensor

    @property
    def won_after_V(self) -> Tensor:
        """Q of the first token, for the metric ``won``."""
        return (self.second_V_V * self.won_V_V).sum(-1)


@cache
def turns_of_one_token() -> tuple[tuple[str, tuple[int, ...]], ...]:
    """For each token: the text of a turn of it, and the ids of the turn and its observation."""
    [state] = start(BOARDS[:1], GameTask(TASK), codec())
    states = [after(state, token) for token in range(VOCABULARY)]
    return tuple((following.turns[0].text, following.ids[len(state.ids):]) for following in states)


def exact(policy: PreTrainedModel, board: Board) -> Exact:
    [state] = start([board], GameTask(TASK), codec())
    texts, turns = zip(*turns_of_one_token(), strict=True)
    odd_V = torch.tensor([float(len(text) % 2) for text in texts])
    contexts = [state.ids, *(state.ids + ids for ids in turns)]
    probability_B_V = last_probabilities(policy, contexts)
    return Exact(probability_B_V[0], probability_B_V[1:], 0.5 * (1 - odd_V), (1 - odd_V)[:, None] * odd_V[None])


def exact_gradients(policy: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Gradients of the expected ``won`` and shaped return over all boards, [2, D], and their values."""
    won, shaped = torch.zeros(()), torch.zeros(())
    for board in BOARDS:
        known = exact(policy, board)
        won = won + (known.first_V * known.won_after_V).sum() / len(BOARDS)
        shaped = shaped + (known.first_V * known.shaped_V).sum() / len(BOARDS)
    values = torch.stack([won, won + shaped])
    gradients = [torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(policy.parameters()),
                                                                       retain_graph=True)]) for value in values]
    return torch.stack(gradients), values.detach()
