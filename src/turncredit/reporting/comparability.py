"""Whether numbers of a scale are comparable with the paper's.

They are if policy, questions, retriever, k, turns, prompt and what an optimiser step averages over are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from turncredit.config.load import Scale
from turncredit.config.reading import with_reading
from turncredit.tasks.search.config import QuestionTaskConfig, SearchConfig

POLICY = "Qwen/Qwen2.5-7B"
_GROUP_QUESTIONS = 512  # a step of Search-R1's GRPO, whose policy is the paper's GRPO-OR: 512 questions x 5 episodes
_PAPER = {  # experiment -> k, N_max, corpora or prebuilt indexes, test sets
    "search": (3, 4, ("wiki-18", "wiki-18-e5-flat"),
               {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique"}),
    "two_turn": (1, 2, ("wikipedia-kilt-doc",), {"triviaqa_rc"})}


def differences(scale: Scale, experiment: str, arm: str | None = None) -> tuple[str, ...]:
    """How an experiment, or one of its arms, differs from the paper's, in words; empty if its numbers are comparable.

    Another policy, data or retriever is named alone; then prompt and step, then what is the arm's. The number of
    steps, learning rate and micro-batches are ignored.
    """
    if experiment not in scale.experiments or experiment not in _PAPER:
        return ("the paper has no such experiment",)
    found = tuple(_of_the_data(scale, experiment)) or tuple(_of_the_step(scale, experiment))
    return found or (tuple(_of_the_arm(scale, experiment, arm)) if arm else ())


def _of_the_data(scale: Scale, experiment: str) -> Iterator[str]:
    """Policy, questions, retriever and turns."""
    k, turns, sources, tested = _PAPER[experiment]
    task, found = scale.experiments[experiment].task, scale.retriever_of(experiment)
    if scale.policy.path_or_id != POLICY or scale.warm_start is not None:
        yield f"{scale.policy.path_or_id or 'a tiny policy made here'} instead of {POLICY.partition('/')[2]}"
    if scale.questions is None:
        yield "questions about countries over a small corpus"
    elif scale.questions.test_questions is not None or not tested <= {*scale.evaluated(experiment)}:
        yield "not all test questions"
    dense = found.faiss is not None and found.faiss.index == "flat" and found.faiss.encoder == "intfloat/e5-base-v2"
    if experiment == "search" and not dense:
        yield f"BM25 retrieval by {found.kind.title()}" if found.kind == "lucene" else "another dense retriever"
    if scale.questions is not None and not {found.corpus, found.prebuilt} & {*sources}:
        yield f"passages of {found.corpus or found.prebuilt}"
    passages = task.top_k if isinstance(task, QuestionTaskConfig) else 0
    if passages != k:
        yield f"k = {passages} passages per search instead of {k}"
    if task.max_turns != turns:
        yield f"N_max = {task.max_turns} instead of {turns}"


def _of_the_step(scale: Scale, experiment: str) -> Iterator[str]:
    """The prompt, and what an optimiser step averages over: its share of the batch, and tokens or sequences."""
    found = scale.experiments[experiment]
    if not (isinstance(found.task, SearchConfig) and found.task.prompt == "search_r1"):
        yield "a prompt in our words"
    training = with_reading(found.reading or scale.reading, found.training, {})
    wanted, parts = {"search": (512, 2), "two_turn": (336, 1)}[experiment]
    batch = training.trajectories_per_step
    if (batch, training.minibatches) != (wanted, parts):
        size = f"{training.tokens_per_step} tokens" if batch is None else f"{batch} trajectories"
        yield f"{size} in {training.minibatches} minibatches a step instead of {wanted} trajectories in {parts}"
    if training.loss_aggregation != "token":
        yield "a loss that averages over sequences"


def _of_the_arm(scale: Scale, experiment: str, arm: str) -> Iterator[str]:
    """Questions a step of a group baseline in search: the paper's row is Search-R1's policy."""
    run = scale.run(experiment, arm, 0, 0)
    if experiment != "search" or run.algorithm.rollout == "single":
        return
    batch, members = run.training.trajectories_per_step or 0, run.training.group_size
    if run.algorithm.rollout == "tree":
        members = prod(run.training.tree_branching_K(run.task.max_turns))
    if batch // members != _GROUP_QUESTIONS:
        yield f"{batch // members} questions a step instead of {_GROUP_QUESTIONS}"


def comparability(scale: Scale) -> str:
    """One sentence for table notes: comparable, or what differs."""
    found = {name: differences(scale, name) for name in scale.experiments if name in _PAPER}
    if not any(found.values()):
        return "Comparable with the paper's numbers: same policy, questions, retriever, k, prompt and batch"
    reasons = list(dict.fromkeys(word for words in found.values() for word in words))
    same = [name for name, words in found.items() if not words]
    return f"Not comparable with the paper's numbers{f' ({same[0]} aside)' if same else ''}: {', '.join(reasons)}"
