"""Whether numbers of a scale are comparable with the paper's: same policy, questions, retriever, k and turns."""

from __future__ import annotations

from collections.abc import Iterator

from turncredit.config.load import Scale
from turncredit.tasks.search.config import QuestionTaskConfig

POLICY = "Qwen/Qwen2.5-7B"
_PAPER = {  # experiment -> k, N_max, corpora or prebuilt indexes, test sets
    "search": (3, 4, ("wiki-18", "wiki-18-e5-flat"),
               {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique"}),
    "two_turn": (1, 2, ("wikipedia-kilt-doc",), {"triviaqa_rc"})}


def differences(scale: Scale, experiment: str) -> tuple[str, ...]:
    """How an experiment differs from the paper's, in words; empty if its numbers are comparable.

    Batch, steps and learning rate are ignored: they decide how well a policy is trained, not what is measured.
    """
    return tuple(_differences(scale, experiment))


def _differences(scale: Scale, experiment: str) -> Iterator[str]:
    if experiment not in scale.experiments or experiment not in _PAPER:
        yield "the paper has no such experiment"
        return
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


def comparability(scale: Scale) -> str:
    """One sentence for table notes: comparable, or what differs."""
    found = {name: differences(scale, name) for name in scale.experiments if name in _PAPER}
    if not any(found.values()):
        return "Comparable with the paper's numbers: same policy, questions, retriever and k"
    reasons = list(dict.fromkeys(word for words in found.values() for word in words))
    same = [name for name, words in found.items() if not words]
    return f"Not comparable with the paper's numbers{f' ({same[0]} aside)' if same else ''}: {', '.join(reasons)}"
