"""What a training step costs on this machine, part by part, beside what the machine can do.

Everything is measured in one run of one process, from the base policy, on the threads that a run
gets. Nothing is written but one CSV: training writes to a temporary folder.
"""

from __future__ import annotations

import csv
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich import box
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from turncredit.config import RunConfig, Scale
from turncredit.credit import Row, TokenCredit, make_estimator, rows_of
from turncredit.equipment import RetrieverConfig
from turncredit.evaluation import Bench
from turncredit.files import atomic
from turncredit.policy.chat import Codec
from turncredit.policy.engine_hf import HFEngine
from turncredit.policy.model import Critic, load_policy
from turncredit.retrieval.client import Retriever
from turncredit.retrieval.leases import ServerDir
from turncredit.retrieval.lucene import build_index
from turncredit.retrieval.manifest import read_manifest
from turncredit.retrieval.service import retriever
from turncredit.tasks import make_task
from turncredit.tasks.base import CountTokens, CutTokens, Step
from turncredit.tasks.episode import Episode, EpisodeTask
from turncredit.tasks.search import RULES
from turncredit.training.batch import Batch
from turncredit.training.cost import CountingLearner, matmul_peak, seconds_of, time_by_kind
from turncredit.training.interrupt import StopRequest
from turncredit.training.learner import Learner
from turncredit.training.manifest import now
from turncredit.training.run import RunPaths, make_bench, read_split
from turncredit.training.seeding import digest
from turncredit.training.trainer import Progress, Trainer
from turncredit.transcript import Document, Group, TurnStop
from turncredit.world.questions import Question

EXPERIMENT = "search"
TREE_G, TREE_K, TREE_QUESTIONS = 4, 3, 3
CHAINS, TREE, LEAVES = "chains", "tree", "leaves written out"
BATCH = 64
REPEATS = 5  # of what takes a second; the fastest counts, as disturbances only add


@dataclass(frozen=True, slots=True)
class Measured:
    """One number: of which part of the benchmark, of what, which measure (its unit in the name)."""

    part: str
    subject: str
    measure: str
    value: float


# Training steps ------------------------------------------------------------------------------------


def arm_steps(config: RunConfig, paths: RunPaths, search: Retriever, steps: int, peak: float) -> list[Measured]:
    """Train an arm for one step and then for ``steps`` measured ones.

    Args:
        config: the run; its steps and validation are shortened.
        paths: where data and base policy are; checkpoints go to ``paths.checkpoints``.
        search: with a cache of its own.
        steps: measured, after the first.
        peak: FLOP/s that count as 1.
    """
    training = config.training.model_copy(update={"steps": steps + 1, "validate_every": steps + 1,
                                                  "checkpoint_every": steps + 1})
    config = config.model_copy(update={"training": training})
    codec, estimator = Codec.load(paths.policy), make_estimator(config.algorithm, training)
    policy = load_policy(paths.policy, config.device)
    learner = CountingLearner(policy, Critic(policy) if estimator.uses_critic else None,
                              load_policy(paths.policy, config.device) if training.kl_coefficient else None,
                              training, config.device)
    trainer = Trainer(
        config, make_bench(config, HFEngine(learner.policy, codec), search, codec), estimator, learner,
        read_split(paths.data, "train", config.train_on), read_split(paths.data, "validation", config.train_on)[:16],
        paths.checkpoints, "bench", StopRequest())
    rows: Any = trainer.train(Progress(started=now())).rows[2:]  # without validation and the first step
    found = {f"{part} s": [row[f"seconds_{part}"] for row in rows] for part in ("rollout", "scoring", "update")}
    found["step s"] = [sum(times) for times in zip(*found.values(), strict=True)]
    found["sampled tok/s"] = [row["tokens_sampled"] / row["seconds_rollout"] for row in rows]
    found["trained tok/s"] = [row["tokens_trained"] / row["seconds_update"] for row in rows]
    found["update GFLOP"] = [flops / 1e9 for flops in learner.flops[1:]]
    found["% of peak"] = [
        100 * flops / row["seconds_update"] / peak for flops, row in zip(learner.flops[1:], rows, strict=True)]
    found["GB so far"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9]
    return [Measured("one training step (medians; GB: this process's peak)", config.arm, name, median(values))
            for name, values in found.items()]


# Trees ---------------------------------------------------------------------------------------------


class SearchingTask(EpisodeTask):
    """The search task, deaf: it hears a search in every turn, so that all episodes last to the turn limit."""

    def start(self, question: Question, count_tokens: CountTokens, cut: CutTokens) -> Episode:
        """See ``Task``."""
        return _Searching(self.config, self.rules, question.question, count_tokens, cut)


class _Searching(Episode):
    @property
    def heard(self) -> str:
        return f"<think> </think><search> {self.question} </search>"

    def query(self, text: str) -> str | None:
        return super().query(self.heard)

    def step(self, text: str, stop: TurnStop, documents: Sequence[Document] | None) -> Step:
        return super().step(self.heard, stop, documents)


def leaf_path(path: tuple[int, ...]) -> tuple[int, ...]:
    """Where a full tree has the turn of a chain that is one of its leaves, written out.

    >>> leaf_path((6, 0, 0)), leaf_path((6, 0))
    ((1, 2, 0), (1, 2))
    """
    digits = tuple(path[0] // TREE_G**(TREE_K - 2 - k) % TREE_G for k in range(TREE_K - 1))
    return (*digits, 0)[:len(path)]


@dataclass(frozen=True, slots=True)
class Shape:
    """How episodes are played and trained: the seeds of turns, and groups as rows."""

    questions: Sequence[Question]
    branching: tuple[int, ...]
    seed_of: Callable[[str, tuple[int, ...]], int]

    def play(self, bench: Bench, temperature: float) -> list[Group]:
        """Play all episodes from a cold cache."""
        bench.engine.reset_prefix_cache()
        return bench.play(self.questions, self.branching, seed_of=self.seed_of, temperature=temperature)


def shapes(questions: Sequence[Question]) -> dict[str, Shape]:
    """As many distinct turns as tree and as chains; and the tree's very leaves, each played by itself."""
    leaves = TREE_G**(TREE_K - 1)
    few = questions[:TREE_QUESTIONS]
    turns = sum(TREE_G**min(k + 1, TREE_K - 1) for k in range(TREE_K))  # distinct ones of a tree
    many = questions[:TREE_QUESTIONS * turns // (TREE_G * TREE_K)]
    alone = (1,) * (TREE_K - 1)

    def seed(question: str, path: tuple[int, ...]) -> int:
        return digest("bench", question, *path)

    return {CHAINS: Shape(many, (TREE_G, *alone), seed), TREE: Shape(few, (TREE_G,) * (TREE_K - 1) + (1,), seed),
            LEAVES: Shape(few, (leaves, *alone), lambda question, path: seed(question, leaf_path(path)))}


def tree_costs(config: RunConfig, policy: Path, search: Retriever, questions: Sequence[Question]) -> list[Measured]:
    """Seconds of rollout and update per distinct token, of full trees, chains and written-out leaves."""
    training = config.training.model_copy(update={"learning_rate": 1e-12})  # the policy stays what it is
    task = SearchingTask(config.task.model_copy(update={"max_turns": TREE_K}), RULES)
    codec = Codec.load(policy)
    learner = Learner(load_policy(policy, config.device), None, None, training, config.device)
    bench = replace(make_bench(config, HFEngine(learner.policy, codec), search, codec), task=task)
    played = shapes(questions)
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in played}
    rows: dict[str, list[Row]] = {}
    for _ in range(REPEATS):  # in turns, so that a busy minute falls on all
        for name, shape in played.items():
            clock = [time.perf_counter()]
            rows[name] = rows_of(shape.play(bench, training.temperature))
            clock.append(time.perf_counter())
            _update(learner, rows[name])
            clock.append(time.perf_counter())
            costs[name].append((clock[1] - clock[0], clock[2] - clock[1]))
    distinct = {name: sum(sum(row.loss_mask) for row in rows[name]) for name in rows}
    distinct[LEAVES] = distinct[TREE]
    each = {name: [1e3 * min(times) / distinct[name] for times in zip(*pairs, strict=True)]
            for name, pairs in costs.items()}
    table = {name: {
        "rows": len(rows[name]), "row tokens": sum(len(row.transcript.ids) for row in rows[name]),
        "distinct tokens": distinct[name],
        "rollout ms": each[name][0], "update ms": each[name][1], "both ms": sum(each[name]),
        "rollout x": each[name][0] / each[CHAINS][0], "update x": each[name][1] / each[CHAINS][1],
        "both x": sum(each[name]) / sum(each[CHAINS])} for name in rows}
    title = f"trees of G = {TREE_G}, K = {TREE_K}: ms a distinct sampled token, and times a chain's"
    measured = [Measured(title, name, measure, value) for name, row in table.items() for measure, value in row.items()]
    shares = time_by_kind(lambda: _update(learner, rows[CHAINS]), learner.policy.config.vocab_size)
    return measured + [Measured("where the time of a policy's update goes (chains)", kind, "%", 100 * share)
                       for kind, share in shares.items()]


def _update(learner: Learner, rows: Sequence[Row]) -> None:
    """One update in which every token has the same credit."""
    batch = Batch.of(rows)
    weight_N = torch.full_like(batch.old_logprob_N, 1 / len(batch.old_logprob_N))
    credit = TokenCredit(weight_N, torch.zeros_like(weight_N), weight_N, torch.ones_like(weight_N))
    learner.update(batch, credit, step=0, seed=0, kl_in_loss=False, reference_logprob_N=None, old_value_N=None)


# Retrieval and sampling ----------------------------------------------------------------------------


def retrieval_rates(data: Path, index: Path, config: RetrieverConfig, queries: Sequence[str], top_k: int,
                    scratch: Path) -> list[Measured]:
    """Passages indexed and queries answered a second; each client starts with an empty cache."""
    seconds = seconds_of(lambda: build_index(data / "corpus.jsonl", scratch, k1=config.k1, b=config.b))
    found = {"passages indexed a second, Java's start included": read_manifest(scratch).documents / seconds}
    with retriever(index, config) as warm:
        warm.search(queries, top_k)
        for name, size in ((f"queries a second, batches of {BATCH}", BATCH), ("queries a second, one by one", 1)):
            asked = queries if size > 1 else queries[:256]
            with retriever(index, config) as cold:
                batches = [asked[start:start + size] for start in range(0, len(asked), size)]
                spent = seconds_of(lambda: [cold.search(batch, top_k) for batch in batches])  # noqa: B023
            found[name] = len(asked) / spent
        server = ServerDir(index.resolve()).published()
        if server is not None:
            found["server's peak memory, GB"] = _peak_kb(server.pid) * 1024 / 1e9
    return [Measured("retrieval through the server, not cached", name, "", value) for name, value in found.items()]


def beside_generate(model: PreTrainedModel, codec: Codec, contexts: Sequence[tuple[int, ...]],
                    max_tokens: int) -> list[Measured]:
    """Greedy tokens a second of our engine and of transformers' generate, for the same contexts and ends.

    Ours returns log-probabilities too; generate is asked for tokens alone.
    """
    engine = HFEngine(model, codec)
    width = max(map(len, contexts))
    ids_B_T, attention_B_T = (torch.tensor(rows, device=model.device) for rows in (
        [[codec.pad_id] * (width - len(ids)) + list(ids) for ids in contexts],
        [[0] * (width - len(ids)) + [1] * len(ids) for ids in contexts]))

    def ours() -> list[list[int]]:
        engine.reset_prefix_cache()
        samples = engine.generate(contexts, seeds=None, max_tokens=max_tokens, temperature=1.0, stop_tags=())
        return [list(sample.ids) for sample in samples]

    def theirs() -> list[list[int]]:
        generate: Any = model.generate
        made: Tensor = generate(ids_B_T, attention_mask=attention_B_T, max_new_tokens=max_tokens, do_sample=False,
                                eos_token_id=sorted(codec.end_ids), pad_token_id=codec.pad_id)
        return [_to_the_end(ids, codec.end_ids) for ids in made[:, width:].tolist()]

    made = {"turncredit": ours(), "transformers": theirs()}  # and a warm-up
    agree = sum(a == b for a, b in zip(*made.values(), strict=True)) / len(contexts)
    rates = {name: sum(map(len, made[name])) / min(seconds_of(sample) for _ in range(REPEATS))
             for name, sample in (("turncredit", ours), ("transformers", theirs))}
    return [Measured(f"greedy turns beside transformers' generate ({len(contexts)} prompts)", name, measure, value)
            for name, rate in rates.items() for measure, value in (
                ("tok/s", rate), ("x transformers", rate / rates["transformers"]), ("% of turns equal", 100 * agree))]


def _to_the_end(ids: list[int], end_ids: frozenset[int]) -> list[int]:
    return ids[:next((t + 1 for t, token in enumerate(ids) if token in end_ids), len(ids))]


# The whole benchmark -------------------------------------------------------------------------------


def run_benchmark(scale: Scale, root: Path, steps: int) -> Iterator[Measured]:
    """Measure everything, a part at a time.

    Args:
        scale: its experiment ``search`` is measured.
        root: the clone, with data, index and base policy of the scale.
        steps: measured training steps of each arm.

    Raises:
        ConfigError: the scale has no search experiment.
        DataError: no world or no index, or altered ones.
        CheckpointError: no base policy.
        RetrieverError: the retriever cannot be reached.
    """
    torch.set_num_threads(scale.threads)
    disable_progress_bar()
    arms = scale.experiments[EXPERIMENT].arms if EXPERIMENT in scale.experiments else [""]
    configs = [scale.run(EXPERIMENT, arm, 0) for arm in arms]
    config, paths = configs[0], RunPaths.under(root, configs[0])
    questions = read_split(paths.data, "train", config.train_on)
    read_manifest(paths.index)
    codec, policy = Codec.load(paths.policy), load_policy(paths.policy, config.device)

    peak = matmul_peak(scale.device)
    yield Measured("machine", "float32 matrix product", "threads", scale.threads)
    yield Measured("machine", "float32 matrix product", "GFLOP/s", peak / 1e9)
    with TemporaryDirectory() as scratch, retriever(paths.index, scale.retriever) as shared:
        for config in configs:
            with retriever(paths.index, scale.retriever) as search:  # the same server, an empty cache
                yield from arm_steps(config, replace(paths, checkpoints=Path(scratch, config.arm)), search, steps, peak)
        yield from tree_costs(config, paths.policy, shared, questions)
        queries = list(dict.fromkeys(hop.query for question in questions for hop in question.plan))[:16 * BATCH]
        yield from retrieval_rates(paths.data, paths.index, scale.retriever, queries, config.task.top_k,
                                   Path(scratch, "index"))
    task = make_task(config.task)
    prompts = [task.start(question, codec.count, codec.cut).prompt() for question in questions[:BATCH]]
    yield from beside_generate(policy, codec, list(map(codec.encode_prompt, prompts)), config.task.max_turn_tokens)


def save(measured: Sequence[Measured], path: Path) -> None:
    """Write all numbers as CSV, a row each."""
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "subject", "measure", "value"])
        writer.writerows((m.part, m.subject, m.measure, f"{m.value:.6g}") for m in measured)


def tables(measured: Sequence[Measured]) -> list[Table]:
    """A table for each part: a row a subject, a column a measure."""
    made = []
    for part in dict.fromkeys(m.part for m in measured):
        value = {(m.subject, m.measure): m.value for m in measured if m.part == part}
        measures = list(dict.fromkeys(measure for _, measure in value))
        table = Table("", title=part, title_justify="left", box=box.SIMPLE_HEAD)
        for measure in measures:
            table.add_column(measure, justify="right")
        for subject in dict.fromkeys(subject for subject, _ in value):
            table.add_row(subject, *(_short(value[subject, measure]) for measure in measures))
        made.append(table)
    return made


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _peak_kb(pid: int) -> int:
    """The most memory that a process of this machine had, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0])
