"""The policies before reinforcement: a tokenizer, the clean policy and each task's base policy.

The paper starts from Qwen2.5-7B. At laptop scale the same role is played by a small model made
here: it learns its skills (to read a passage, to write the next query) from clean demonstrations,
which gives the *clean* policy, the ceiling that reinforcement can reach; then a short training on
flawed demonstrations gives it bad habits, which makes a task's *base* policy, where all arms start.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from turncredit.config.data import FLAWS, PolicyConfig, WarmStartConfig
from turncredit.config.load import Scale
from turncredit.config.task import TaskConfig
from turncredit.credit.rows import Row
from turncredit.data.corpus import read_corpus
from turncredit.data.prepare import checked_file
from turncredit.errors import DataError
from turncredit.files import atomic_folder
from turncredit.miniature.demonstrations import Demonstration, demonstrate, flaw_rates, kind_of, renamed
from turncredit.miniature.facts import load_facts
from turncredit.miniature.renaming import Renamer
from turncredit.policy.model import load_policy, make_tiny_policy, save_policy, token_logprobs
from turncredit.policy.tokenizer import Codec, load_tokenizer, train_tokenizer
from turncredit.retrieval.lifecycle import retriever
from turncredit.seeding import digest, permutation
from turncredit.tasks.registry import make_task
from turncredit.tasks.tool_search import protocol as tool_search
from turncredit.training.batch import Batch, MicroBatch
from turncredit.training.learner import check_finite
from turncredit.training.run import read_split
from turncredit.types import Question, Transcript, Turn, TurnStop

_RENAMED_SHARE = 0.8  # of the demonstrations; the others are true
_CHUNK = 2048  # demonstrations rendered at a time


def make_tokenizer(data: Path, config: PolicyConfig, output: Path) -> None:
    """Save the tokenizer of the given policy, or one trained on the world's passages, names and train questions."""
    tokenizer = load_tokenizer(config.path_or_id) if config.path_or_id else _trained_tokenizer(data, config.vocabulary)
    with atomic_folder(output) as fresh:
        tokenizer.save_pretrained(fresh)


def _trained_tokenizer(data: Path, vocabulary: int) -> PreTrainedTokenizerFast:
    passages = [passage.document() for passage in read_corpus(checked_file(data, "corpus.jsonl"))]
    questions = [question.question for question in read_split(data, "train", None)]
    renamer = make_renamer(data)
    names = [name for names in renamer.names_of.values() for name in names]
    fixed = [tool_search.RULES.hint,
             "Question: Doc 1(Title: Doc 2(Title: Doc 3(Title: find unclear Invalid. Search or answer.",
             ' {"name": "wiki_search", "args": {"query": " Error: no tool call bad JSON unknown tool bad arguments']
    texts = itertools.chain(
        (f" {passage.title}) {passage.text}" for passage in passages), (f" {q}" for q in questions),
        (f" {name}" for name in names), fixed * 50)
    return train_tokenizer(texts, vocabulary)


def make_renamer(data: Path) -> Renamer:
    """All names of the world that lies in ``data``."""
    titles = (passage.document().title for passage in read_corpus(checked_file(data, "corpus.jsonl")))
    return Renamer.of(load_facts(), titles)


def make_clean(scale: Scale, data: Path, index: Path, tokenizer: Path, output: Path) -> None:
    """Train the clean policy, from random weights or a given policy's, on clean demonstrations of every task."""
    codec, config = Codec.load(tokenizer), scale.made_start()
    given = scale.policy.path_or_id
    model = load_policy(given) if given else make_tiny_policy(scale.policy, len(codec.tokenizer), config.seed)
    tasks = list({e.task.name: e.task for e in reversed(scale.experiments.values())}.values())  # the first of a name
    rows = demonstration_rows(scale, tasks, data, index, codec, flawed=False)
    imitate(model, rows, config, steps=config.clean_steps, learning_rate=config.clean_learning_rate)
    save_policy(model, output, codec.tokenizer)


def make_base(scale: Scale, task: TaskConfig, data: Path, index: Path, clean: Path, output: Path) -> None:
    """Give the clean policy the bad habits of a task's flawed demonstrations."""
    codec, config = Codec.load(clean), scale.made_start()
    model = load_policy(clean)
    rows = demonstration_rows(scale, [task], data, index, codec, flawed=True)
    imitate(model, rows, config, steps=config.flawed_steps, learning_rate=config.flawed_learning_rate)
    save_policy(model, output, codec.tokenizer)


def imitate(model: PreTrainedModel, rows: Iterator[list[Row]], config: WarmStartConfig, *, steps: int,
            learning_rate: float) -> None:
    """Maximise the log-likelihood of what the demonstrations say (not of what they see); in place.

    Args:
        model: trained in place.
        rows: endless chunks of demonstrations.
        config: batch, warm-up, threads and seed.
        steps: optimiser steps.
        learning_rate: after the warm-up; falls linearly to 0, since Muon's steps do not shrink with the gradient.

    Raises:
        NonFiniteError: the loss or its gradient is NaN or infinite.
    """
    torch.set_num_threads(config.threads)
    muon_learning_rate = config.muon_learning_rate * learning_rate / config.clean_learning_rate
    optimizers = _optimizers(model, learning_rate, muon_learning_rate)
    model.train()
    bar = tqdm(total=steps, unit="step", disable=not sys.stderr.isatty())
    for step, micros in enumerate(itertools.islice(_steps(rows, config), steps)):
        share = min(1.0, (step + 1) / max(1, config.warmup_steps)) * (1 - step / steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * share
        model.zero_grad()
        tokens, loss = sum(len(micro.flat_N) for micro in micros), 0.0
        for micro in micros:
            logprob_N, _ = token_logprobs(model, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T, 1.0)
            part = -logprob_N.sum() / tokens
            part.backward()
            loss += part.item()
        check_finite("the warm start's gradient", torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        for optimizer in optimizers:
            optimizer.step()
        bar.update()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            bar.set_postfix(loss=f"{loss:.3f}")
            if bar.disable:
                print(f"warm start {step + 1}/{steps} loss {loss:.3f}", file=sys.stderr)
    bar.close()
    model.eval()


def _optimizers(model: PreTrainedModel, learning_rate: float, muon_learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the network (copying is learnt in half the steps), AdamW for the rest."""
    inside: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (inside if matrix else rest).append(parameter)
    optimizers = [torch.optim.Muon(inside, lr=muon_learning_rate, momentum=0.95, weight_decay=0.0),
                  torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def demonstration_rows(scale: Scale, tasks: Sequence[TaskConfig], data: Path, index: Path, codec: Codec, *,
                       flawed: bool) -> Iterator[list[Row]]:
    """Endless chunks of demonstrations of the tasks, most of them renamed; a flawed question twice, differently.

    The questions are the train questions of all datasets (an agent that reads English has seen such
    questions); reinforcement sees those of ``train_on`` alone. The first chunks of clean
    demonstrations take one-hop questions alone: short episodes teach reading fastest.

    Raises:
        DataError: a file of the world is missing or altered, or has no question that a task fits.
        RetrieverError: the retriever cannot be reached.
    """
    config = scale.made_start()
    means = config.flaws if flawed else dict.fromkeys(FLAWS, 0.0)
    renamer = make_renamer(data)
    demonstrations: list[Demonstration] = []
    hops: list[int] = []
    with retriever(index, scale.retriever) as search:
        for task in tasks:
            questions = _that_fit(task, read_split(data, "train", None), data) * (2 if flawed else 1)
            rates = flaw_rates([kind_of(question) for question in questions], means, config.flaw_spread, config.seed)
            demonstrations += demonstrate(questions, make_task(task), search, codec, renamer, rates, config.seed)
            hops += [question.hops for question in questions]

    def chunks() -> Iterator[list[Row]]:
        for epoch in itertools.count():
            order = permutation(len(demonstrations), config.seed, "demonstrations", epoch)
            if epoch == 0 and not flawed:  # renamed afresh each time
                order = [i for i in order if hops[i] == 1] * config.one_hop_epochs + order
            for start in range(0, len(order), _CHUNK):
                rng = random.Random(digest(config.seed, "names", epoch, start))
                yield [render(renamed(d, renamer, rng) if rng.random() < _RENAMED_SHARE else d, codec)
                       for d in (demonstrations[i] for i in order[start:start + _CHUNK])]

    return chunks()


def _that_fit(task: TaskConfig, questions: list[Question], data: Path) -> list[Question]:
    """The questions that a task's turns allow."""
    fit = [q for q in questions if q.hops == 1] if task.max_turns <= 2 else questions  # two turns: one call
    if not fit:
        raise DataError(f"{data}: no train question of one hop, which is all that {task.max_turns} turns allow",
                        "name a dataset of one hop in world.in_domain: facts or inverse")
    return fit


def render(demonstration: Demonstration, codec: Codec) -> Row:
    """A demonstration as a training row: what was said has loss 1, what was seen 0."""
    turns = []
    for k, (said, seen) in enumerate(zip(demonstration.said_K, demonstration.seen_K, strict=True)):
        ids = codec.encode_observation(said)
        last = k == len(demonstration.said_K) - 1
        seen_ids = () if last else codec.encode_observation(seen.text, seen.role)
        turns.append(Turn(said, ids, (0.0,) * len(ids), TurnStop.TAG, seen, seen_ids))
    prompt_ids = codec.encode_prompt(demonstration.prompt)
    transcript = Transcript(demonstration.question_id, prompt_ids, tuple(turns), demonstration.stop)
    return Row(transcript, (True,) * len(turns), group=0, leaf=0)


def _steps(rows: Iterator[list[Row]], config: WarmStartConfig) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each optimiser step; rows of every length in each, or the steps would pull apart."""
    for n, chunk in enumerate(rows):
        batch = Batch.of(chunk)
        order = permutation(len(chunk), config.seed, "batches", n)
        size = min(config.batch, len(order))
        for start in range(0, len(order) - size + 1, size):
            step = order[start:start + size]
            yield batch.micro_batches(step, sum(len(batch.ids_R[r]) for r in step) // 2)

