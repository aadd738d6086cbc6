"""A whole run in seconds: a tiny policy that knows the protocol, a small world, a retriever in this process.

As a program (``python -m tests.small_run ROOT ARM EVENT``) it trains and kills itself with SIGKILL at
the EVENT-th of its events: a turn sampled, an optimiser step, a file of a checkpoint, a metrics file.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from turncredit.config.algorithm import Algorithm
from turncredit.config.data import PolicyConfig
from turncredit.config.load import RunConfig
from turncredit.config.retriever import RetrieverConfig
from turncredit.config.training import TrainingConfig
from turncredit.files import sha256
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import make_tiny_policy, save_policy
from turncredit.policy.tokenizer import Codec, train_tokenizer
from turncredit.tasks.plugin import ServiceSettings
from turncredit.tasks.search import services
from turncredit.tasks.search.config import SearchConfig, SearchRewards
from turncredit.training import checkpoint, run
from turncredit.training import loop as trainer
from turncredit.training.learner import Learner
from turncredit.types import Document, Hop, Question

WORDS = ("red", "blue", "green", "gold")
ALGORITHMS = {
    "chains": Algorithm(estimator="group", placement="delayed", content="merged", rollout="chains"),
    "tree": Algorithm(estimator="group", placement="per_turn", content="full", rollout="tree"),
    "critic": Algorithm(estimator="critic", placement="per_turn", content="full", rollout="single"),
}
TASK = SearchConfig(name="search", max_turns=3, max_turn_tokens=12, max_observation_tokens=40,
                    max_context_tokens=160, top_k=1)
TRAINING = TrainingConfig(
    steps=5, tokens_per_step=150, group_size=3, minibatches=2, micro_batch_tokens=600, learning_rate=3e-3,
    warmup_steps=2, validate_every=2, checkpoint_every=1, temperature=0.9, inner_epochs=2)


def config(arm: str, **training: Any) -> RunConfig:
    return RunConfig(scale="test", experiment="search", arm=arm, seed=0, algorithm=ALGORITHMS[arm], task=TASK,
                     rewards=SearchRewards(), train_on=("facts",), device="cpu", threads=1,
                     training=TRAINING.model_copy(update=training))


def questions(split: str, count: int) -> list[Question]:
    return [Question(f"facts-{split}-{i}", "facts", f"colour of {WORDS[i % 4]} {i}", (WORDS[i % 4],), 1,
                     (Hop(WORDS[i % 4], WORDS[i % 4]),)) for i in range(count)]


def make_world(root: Path) -> None:
    """Data, index manifest and an initial policy under ``root``, laid out as in a clone."""
    data, names = root / "data" / "test", {}
    for split, count in (("train", 12), ("validation", 6), ("test", 8)):
        path = data / "questions" / f"facts.{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(asdict(q)) + "\n" for q in questions(split, count)))
        names[f"questions/facts.{split}.jsonl"] = sha256(path)
    (data / "world.json").write_text(json.dumps({"sha256": names}))
    index = root / "index" / "test"
    index.mkdir(parents=True)
    (index / "index.json").write_text("{}")
    _make_policy(root / "policy" / "test" / "base-0" / "initial" / "search")


def _make_policy(folder: Path) -> None:
    """A few steps on demonstrations, so that all actions are sampled now and then."""
    torch.set_num_threads(1)
    turns = [f"<think>{word}</think><{tag}>{word}</{tag}>" for word in WORDS for tag in ("search", "answer")]
    codec = Codec(train_tokenizer([*turns, *(q.question for q in questions("train", 12))] * 3, 320))
    sizes = PolicyConfig(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=64, max_positions=256)
    model = make_tiny_policy(sizes, len(codec.tokenizer), seed=0)
    with torch.no_grad():  # weights so small that a few steps leave every action likely
        for weight in (parameter for parameter in model.parameters() if parameter.ndim == 2):
            weight.mul_(0.02 * sizes.hidden_size**0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = []
    for question, turn in itertools.product(questions("train", 4), turns):
        prompt = codec.encode_prompt([{"role": "user", "content": f"Question: {question.question}?"}])
        ids = [*prompt, *codec.encode_observation(turn)]
        rows.append(torch.tensor(ids))
    ids_B_T = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=codec.pad_id)
    for _ in range(60):
        loss = model(ids_B_T, labels=ids_B_T.masked_fill(ids_B_T == codec.pad_id, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_policy(model, folder, codec.tokenizer)


class FakeRetriever:
    """Finds a passage about the first known word of a query."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        found = ((word for word in WORDS if word in query) for query in queries)
        return [[Document(word, word.title(), f"It is {word}.", 1.0)] if (word := next(words, None)) else []
                for words in found]


def untimed(path: Path) -> list[dict[str, str]]:
    """The rows of a metrics.csv without the clock's columns."""
    with path.open(newline="") as file:
        return [{name: value for name, value in row.items() if name != "wall_s" and not name.startswith("seconds_")}
                for row in csv.DictReader(file)]


@contextmanager
def served() -> Iterator[None]:
    """Let ``train_run`` and ``evaluate_run`` find the fake retriever."""
    @contextmanager
    def fake(index: Path, config: RetrieverConfig) -> Iterator[FakeRetriever]:
        yield FakeRetriever()

    real, services.retriever = services.retriever, fake  # type: ignore[assignment]
    try:
        yield
    finally:
        services.retriever = real


def service_settings(paths: run.RunPaths) -> ServiceSettings:
    return ServiceSettings(RetrieverConfig(), paths.index)


def train(root: Path, config: RunConfig) -> run.RunPaths:
    """Train under ``root``."""
    paths = run.RunPaths.under(root, config)
    with served():
        run.train_run(config, service_settings(paths), paths)
    return paths


@contextmanager
def events(at: Callable[[int, str], None]) -> Iterator[None]:
    """Call ``at`` with a number, from 1, and a name at each event of this process while the block runs."""
    numbers, watched = itertools.count(1), []

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            at(next(numbers), name)
            return real(*arguments, **named)
        watched.append((owner, name, real))
        setattr(owner, name, call)

    watch(HFEngine, "generate")
    watch(Learner, "_optimizer_step")
    watch(checkpoint, "sha256")
    watch(checkpoint, "sync")
    watch(trainer, "write_metrics")
    try:
        yield
    finally:
        for owner, name, real in watched:
            setattr(owner, name, real)


if __name__ == "__main__":
    where, which, event = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def die(number: int, name: str) -> None:
        if number == event:
            os.kill(os.getpid(), signal.SIGKILL)

    with events(die):
        train(where, config(which))
