"""Makes the policies that RL training starts from: a tokenizer, the expert policy and each task's initial policy.

The paper starts from Qwen2.5-7B. At laptop scale a small model that is made here plays its role. It
learns its skills (to read a passage, to write the next query) from correct demonstrations; this gives
the *expert* policy, a yardstick for RL training. A short training on degraded
demonstrations then gives it bad habits; this gives a task's *initial* policy, where all arms start.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from turncredit.config.data import PolicyConfig, WarmStartConfig, WorldConfig
from turncredit.config.load import Scale
from turncredit.config.task import TaskConfig
from turncredit.credit.rows import Row
from turncredit.data.checksums import checked_file
from turncredit.data.corpus import read_corpus
from turncredit.data.questions import read_split
from turncredit.errors import ConfigError, DataError
from turncredit.files import atomic_folder
from turncredit.miniature.demonstrations import Demonstration, demonstrate, flaw_rates, renamed
from turncredit.miniature.facts import load_facts
from turncredit.miniature.questions import known_countries, known_facts
from turncredit.miniature.renaming import Renamer
from turncredit.policy.model import head_logits, load_policy, make_tiny_policy, save_policy
from turncredit.policy.tokenizer import Codec, load_tokenizer, train_tokenizer
from turncredit.seeding import derive_seed, permutation
from turncredit.tasks.plugin import Demonstrations, ServiceSettings, TaskPlugin
from turncredit.tasks.registry import TASKS, make_task, plugin_of
from turncredit.training.batch import Batch, MicroBatch
from turncredit.training.learner import check_finite
from turncredit.types import Item, StopReason, Transcript, Turn, TurnStop

_RENAMED_SHARE = 0.8  # of the demonstrations; the others are true
_REMEDY = ("lower warm_start.expert_learning_rate, warm_start.degraded_learning_rate or "
           "warm_start.muon_learning_rate")
_RECITED = 8  # facts of a recitation
_DECIDED = {"expert": 0.03, "degraded": 0.5}  # of the recitations; a degraded policy knows when it knows
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
    fixed = [text for task in TASKS.values() if task.demonstrations for text in task.demonstrations.texts]
    texts = itertools.chain(
        (f" {passage.title}) {passage.text}" for passage in passages), (f" {q}" for q in questions),
        (f" {name}" for name in names), fixed * 50)
    return train_tokenizer(texts, vocabulary)


def make_renamer(data: Path, known: Collection[str] = ()) -> Renamer:
    """Make the renamer of the miniature world whose files are in ``data``; ``known`` as in ``Renamer``."""
    titles = (passage.document().title for passage in read_corpus(checked_file(data, "corpus.jsonl")))
    return Renamer.of(load_facts(), titles, known)


def make_expert(scale: Scale, data: Path, index: Path, tokenizer: Path, output: Path) -> None:
    """Train the expert policy, from random weights or a given policy's, on correct demonstrations of every task."""
    codec, config = Codec.load(tokenizer), scale.require_warm_start()
    given = scale.policy.path_or_id
    model = load_policy(given) if given else make_tiny_policy(scale.policy, len(codec.tokenizer), config.seed)
    tasks = list({t.name: t for t in map(scale.task_of, reversed(scale.experiments))}.values())  # the first of a name
    rows = demonstration_rows(scale, tasks, data, index, codec, degraded=False)
    imitate(model, rows, config, steps=config.expert_steps, learning_rate=config.expert_learning_rate)
    save_policy(model, output, codec.tokenizer)


def make_initial(scale: Scale, task: TaskConfig, data: Path, index: Path, expert: Path, output: Path) -> None:
    """Give the expert policy the bad habits of a task's degraded demonstrations."""
    codec, config = Codec.load(expert), scale.require_warm_start()
    model = load_policy(expert)
    rows = demonstration_rows(scale, [task], data, index, codec, degraded=True)
    imitate(model, rows, config, steps=config.degraded_steps, learning_rate=config.degraded_learning_rate)
    save_policy(model, output, codec.tokenizer)


def imitate(model: PreTrainedModel, rows: Iterator[list[Row]], config: WarmStartConfig, *, steps: int,
            learning_rate: float) -> None:
    """Maximise the log-likelihood of the demonstrations' turns, not of their observations; in place.

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
    muon_learning_rate = config.muon_learning_rate * learning_rate / config.expert_learning_rate
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
            part = _negative_log_likelihood(model, micro) / tokens
            part.backward()
            loss += part.item()
        check_finite("the warm start's gradient", torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), _REMEDY)
        for optimizer in optimizers:
            optimizer.step()
        bar.update()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            bar.set_postfix(loss=f"{loss:.3f}")
            if bar.disable:
                print(f"warm start {step + 1}/{steps} loss {loss:.3f}", file=sys.stderr)
    bar.close()
    model.eval()


def _negative_log_likelihood(model: PreTrainedModel, micro: MicroBatch) -> torch.Tensor:
    """The sum over the loss tokens. Padding is on the right, where causal attention needs no mask to ignore it."""
    hidden_B_T_H = model.base_model(input_ids=micro.ids_B_T, use_cache=False).last_hidden_state
    predicts_B_T = micro.loss_mask_B_T[:, 1:]
    logits_N_V = head_logits(model, hidden_B_T_H[:, :-1][predicts_B_T])
    return torch.nn.functional.cross_entropy(logits_N_V, micro.ids_B_T[:, 1:][predicts_B_T], reduction="sum")


def _optimizers(model: PreTrainedModel, learning_rate: float, muon_learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices inside the layers, AdamW for embeddings, biases and norms."""
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
                       degraded: bool) -> Iterator[list[Row]]:
    """Endless chunks of demonstrations of the tasks, most of them renamed; degraded ones play each item twice.

    The items are the train items of all data sets, so that the policy can read every kind of question,
    as a pretrained one can; RL training uses only those of ``train_on``. The first chunks of correct
    demonstrations have short items only, a curriculum from one hop to several.

    Raises:
        ConfigError: a task has no demonstrations.
        DataError: a file of the world is missing or altered, or no item fits into a task's turns.
        RetrieverError: the retriever cannot be reached.
    """
    config, world = scale.require_warm_start(), scale.require_world()
    renamer = make_renamer(data, known_countries(load_facts(), world.known_countries, world.seed))
    known = [facts for task in tasks if (facts := _known_facts(world, task, codec))]
    played: list[Demonstration] = []
    short: list[bool] = []
    for task in tasks:
        plugin = plugin_of(task.name)
        demonstrations = _demonstrations(plugin)
        items = _items_that_fit(plugin, task, data) * (2 if degraded else 1)
        means = {flaw: config.flaws[flaw] if degraded else 0.0 for flaw in demonstrations.flaws}
        rates = flaw_rates(list(map(demonstrations.kind_of, items)), means, config.flaw_spread, config.seed)
        with plugin.open_services(task, ServiceSettings(scale.retriever, index)) as services:
            played += demonstrate(items, make_task(task), demonstrations, services, codec, renamer, rates, config.seed)
        short += map(demonstrations.is_short, items)

    decided = _DECIDED["degraded" if degraded else "expert"]

    def chunks() -> Iterator[list[Row]]:
        for epoch in itertools.count():
            order = permutation(len(played), config.seed, "demonstrations", epoch)
            if epoch == 0 and not degraded:  # renamed afresh each time
                order = [i for i in order if short[i]] * config.one_hop_epochs + order
            for start in range(0, len(order), _CHUNK):
                rng = random.Random(derive_seed(config.seed, "names", epoch, start))
                shown = [played[i] for i in order[start:start + _CHUNK]]
                first = epoch == 0 and not degraded  # copying from passages is learnt before any fact
                recited = 0 if first or not known else round(config.recited / (1 - config.recited) * len(shown))
                yield [*(render(renamed(d, renamer, rng) if rng.random() < _RENAMED_SHARE and not d.recalled else d,
                                codec) for d in shown), *(
                           _recitation(rng.sample(facts, min(_RECITED, len(facts))), decides=rng.random() < decided)
                           for facts in rng.choices(known, k=recited))]

    return chunks()


@dataclass(frozen=True, slots=True)
class _KnownFact:
    """A fact of a known country: the item that asks for it, and a turn that recalls it, in two parts."""

    item_id: str
    prompt_ids: tuple[int, ...]
    given_ids: tuple[int, ...]
    said: str
    said_ids: tuple[int, ...]


def _known_facts(world: WorldConfig, config: TaskConfig, codec: Codec) -> list[_KnownFact]:
    """The facts of known countries in the words of a task; none if it has no words for them."""
    task, recite = make_task(config), _demonstrations(plugin_of(config.name)).recite
    if recite is None:
        return []
    facts = []
    for item in known_facts(load_facts(), world.known_countries, world.seed):
        given, said = recite(item)
        prompt = codec.encode_prompt(task.start(item, codec.count, codec.cut).reset())
        facts.append(_KnownFact(item.id, prompt, codec.encode_observation(given), said, codec.encode_observation(said)))
    return facts


def _recitation(facts: Sequence[_KnownFact], *, decides: bool) -> Row:
    """Facts in one row. Only the answers are trained: what is recalled, and if ``decides`` once that it is."""
    first = facts[0]
    said = [(first.given_ids + first.said_ids if decides else first.said_ids), *(fact.said_ids for fact in facts[1:])]
    turns = tuple(
        Turn(fact.said, ids, (0.0,) * len(ids), TurnStop.TAG,
             observation_ids=() if following is None else following.given_ids)
        for fact, ids, following in itertools.zip_longest(facts, said, facts[1:]))
    prompt = first.prompt_ids if decides else first.prompt_ids + first.given_ids
    return Row(Transcript(first.item_id, prompt, turns, StopReason.ANSWERED), (True,) * len(turns), group=0, leaf=0)


def _demonstrations(plugin: TaskPlugin) -> Demonstrations:
    if plugin.demonstrations is None:
        raise ConfigError(f"task {plugin.name!r} has no demonstrations",
                          "start from a given policy (policy.path_or_id), without warm_start")
    return plugin.demonstrations


def _items_that_fit(plugin: TaskPlugin, task: TaskConfig, data: Path) -> list[Item]:
    """The train items of all data sets that a task's turns have room for."""
    fits = _demonstrations(plugin).fits
    items = [item for item in plugin.read_items(data, "train", None) if fits(task, item)]
    if not items:
        raise DataError(f"{data}: no train item of task {task.name!r} fits into {task.max_turns} turns",
                        "name a data set with shorter ones in world.in_domain (facts, inverse), or raise max_turns")
    return items


def render(demonstration: Demonstration, codec: Codec) -> Row:
    """A demonstration as a training row: turns have loss 1, observations 0."""
    turns = []
    for k, (text, observation) in enumerate(zip(demonstration.text_K, demonstration.observation_K, strict=True)):
        ids = codec.encode_observation(text)
        last = k == len(demonstration.text_K) - 1
        observation_ids = () if last else codec.encode_observation(observation.text, observation.role)
        turns.append(Turn(text, ids, (0.0,) * len(ids), TurnStop.TAG, observation, observation_ids))
    prompt_ids = codec.encode_prompt(demonstration.prompt)
    transcript = Transcript(demonstration.item_id, prompt_ids, tuple(turns), demonstration.stop)
    return Row(transcript, (True,) * len(turns), group=0, leaf=0)


def _steps(rows: Iterator[list[Row]], config: WarmStartConfig) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each optimiser step; each has rows of all lengths, drawn at random from a chunk."""
    for n, chunk in enumerate(rows):
        batch = Batch.of(chunk)
        order = permutation(len(chunk), config.seed, "batches", n)
        size = min(config.batch, len(order))
        for start in range(0, len(order) - size + 1, size):
            step = order[start:start + size]
            yield batch.micro_batches(step, sum(len(batch.ids_R[r]) for r in step) // 2)

