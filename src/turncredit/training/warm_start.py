"""The policies before reinforcement: a tokenizer, the clean policy and each task's base policy.

The paper starts from Qwen2.5-7B. At laptop scale the same role is played by a small model made
here: it learns its skills (to read a passage, to write the next query) from clean demonstrations,
which gives the *clean* policy, the ceiling that reinforcement can reach; then a short training on
flawed demonstrations gives it bad habits, which makes a task's *base* policy, where all arms start.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from turncredit.config import FLAWS, Scale, TaskConfig, WarmStartConfig
from turncredit.credit import Row
from turncredit.policy.chat import Codec, train_tokenizer
from turncredit.policy.model import load_policy, make_tiny_policy, save_policy, token_logprobs
from turncredit.retrieval.corpus import read_corpus
from turncredit.retrieval.service import retriever
from turncredit.tasks import make_task
from turncredit.training.batch import Batch, MicroBatch
from turncredit.training.demonstrations import Demonstration, demonstrate, flaw_rates, kind_of, renamed
from turncredit.training.seeding import digest, permutation
from turncredit.transcript import StopReason, Transcript, Turn, TurnStop
from turncredit.world.facts import load_facts
from turncredit.world.questions import Question, read_questions
from turncredit.world.renaming import Renamer

_RENAMED_SHARE = 0.8  # of the demonstrations; the others are true
_CHUNK = 2048  # demonstrations rendered at a time


def make_tokenizer(data: Path, vocabulary: int, output: Path) -> None:
    """Train the tokenizer on the world's passages, names and training questions; save it as a folder."""
    passages = [passage.document() for passage in read_corpus(data / "corpus.jsonl")]
    questions = [q.question for path in sorted((data / "questions").glob("*.train.jsonl")) for q in read_questions(path)]
    renamer = make_renamer(data)
    names = [name for names in renamer.names_of.values() for name in names]
    fixed = ["Question: Doc 1(Title: Doc 2(Title: Doc 3(Title: find unclear Invalid. Search or answer.",
             ' {"name": "wiki_search", "args": {"query": " Error: no tool call bad JSON unknown tool bad arguments']
    texts = itertools.chain(
        (f" {passage.title}) {passage.text}" for passage in passages), (f" {q}" for q in questions),
        (f" {name}" for name in names), fixed * 50)
    tokenizer = train_tokenizer(texts, vocabulary)
    output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(output)


def make_renamer(data: Path) -> Renamer:
    """All names of the world that lies in ``data``."""
    titles = (passage.document().title for passage in read_corpus(data / "corpus.jsonl"))
    return Renamer.of(load_facts(), titles)


def make_clean(scale: Scale, data: Path, index: Path, tokenizer: Path, output: Path) -> None:
    """Train the clean policy, from random weights or a given policy's, on clean demonstrations of the search task."""
    codec, config = Codec.load(tokenizer), scale.warm_start
    given = scale.policy.path_or_id
    model = load_policy(given) if given else make_tiny_policy(scale.policy, len(codec.tokenizer), config.seed)
    task = next(e.task for e in scale.experiments.values() if e.task.name == "search")
    rows = demonstration_rows(scale, task, data, index, codec, flawed=False)
    imitate(model, rows, config, steps=config.clean_steps, learning_rate=config.clean_learning_rate)
    save_policy(model, output, codec.tokenizer)


def make_base(scale: Scale, task: TaskConfig, data: Path, index: Path, clean: Path, output: Path) -> None:
    """Give the clean policy the bad habits of a task's flawed demonstrations."""
    codec, config = Codec.load(clean), scale.warm_start
    model = load_policy(clean)
    rows = demonstration_rows(scale, task, data, index, codec, flawed=True)
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
        learning_rate: after the warm-up; falls linearly to a tenth of it.
    """
    torch.set_num_threads(config.threads)
    optimizers = _optimizers(model, learning_rate, config.muon_learning_rate * learning_rate / config.clean_learning_rate)
    model.train()
    bar = tqdm(total=steps, unit="step", disable=not sys.stderr.isatty())
    for step, micro in enumerate(itertools.islice(_shuffled(rows, config), steps)):
        share = min(1.0, (step + 1) / max(1, config.warmup_steps)) * (1 - 0.9 * step / steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * share
        logprob_N, _ = token_logprobs(model, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T, 1.0)
        loss = -logprob_N.mean()
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        bar.update()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            bar.set_postfix(loss=f"{loss.item():.3f}")
            if bar.disable:
                print(f"warm start {step + 1}/{steps} loss {loss.item():.3f}", file=sys.stderr)
    bar.close()
    model.eval()


def _optimizers(model: PreTrainedModel, learning_rate: float, muon_learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the network (copying is learnt in half the steps), AdamW for the rest."""
    inside = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    rest = [p for p in model.parameters() if not any(p is q for q in inside)]
    optimizers = [torch.optim.Muon(inside, lr=muon_learning_rate, momentum=0.95, weight_decay=0.0),
                  torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def demonstration_rows(scale: Scale, task_config: TaskConfig, data: Path, index: Path, codec: Codec, *,
                       flawed: bool) -> Iterator[list[Row]]:
    """Endless chunks of demonstrations, most of them renamed; a flawed question twice as different episodes.

    The first chunks of clean demonstrations take one-hop questions alone: short episodes teach reading fastest. The questions are the train questions of all datasets (an agent that reads English has seen such
    questions); reinforcement sees those of ``train_on`` alone.
    """
    config = scale.warm_start
    questions = [q for path in sorted((data / "questions").glob("*.train.jsonl")) for q in read_questions(path)]
    if task_config.max_turns <= 2:  # one call is all that fits
        questions = [q for q in questions if q.hops == 1]
    kinds = [kind_of(question) for question in questions]
    means = config.flaws if flawed else dict.fromkeys(FLAWS, 0.0)
    rates = flaw_rates(kinds, means, config.flaw_spread, config.seed)
    renamer = make_renamer(data)
    with retriever(index, scale.retriever) as search:
        demonstrations = demonstrate(_repeat(questions, 2 if flawed else 1), make_task(task_config), search, codec, renamer,
                                     rates, config.seed)

    def chunks() -> Iterator[list[Row]]:
        for epoch in itertools.count():
            order = permutation(len(demonstrations), config.seed, "demonstrations", epoch)
            if epoch == 0 and not flawed:
                order = [i for i in order if questions[i].hops == 1] * config.one_hop_epochs + order  # renamed afresh each time
            for start in range(0, len(order), _CHUNK):
                rng = random.Random(digest(config.seed, "names", epoch, start))
                yield [render(renamed(d, renamer, rng) if rng.random() < _RENAMED_SHARE else d, codec)
                       for d in (demonstrations[i] for i in order[start:start + _CHUNK])]

    return chunks()


def render(demonstration: Demonstration, codec: Codec) -> Row:
    """A demonstration as a training row: what was said has loss 1, what was seen 0."""
    turns = []
    for k, (said, seen) in enumerate(zip(demonstration.said_K, demonstration.seen_K, strict=True)):
        ids = codec.encode_observation(said)
        last = k == len(demonstration.said_K) - 1
        seen_ids = () if last else codec.encode_observation(seen.text, seen.role)
        turns.append(Turn(said, ids, (0.0,) * len(ids), TurnStop.TAG, seen, seen_ids))
    prompt_ids = codec.encode_prompt(demonstration.prompt)
    transcript = Transcript(demonstration.question_id, prompt_ids, tuple(turns), StopReason.ANSWERED)
    return Row(transcript, (True,) * len(turns), (0, 0))


def _shuffled(rows: Iterator[list[Row]], config: WarmStartConfig) -> Iterator[MicroBatch]:
    """Batches of rows of like length, in a seeded order within each chunk."""
    for n, chunk in enumerate(rows):
        batch = Batch.of(chunk)
        tokens = config.batch * sum(map(len, batch.ids_R)) // len(batch.ids_R)
        micros = batch.micro_batches(range(len(chunk)), tokens)
        for i in permutation(len(micros), config.seed, "batches", n):
            yield micros[i]


def _repeat(questions: Sequence[Question], times: int) -> list[Question]:
    return [question for _ in range(times) for question in questions]

