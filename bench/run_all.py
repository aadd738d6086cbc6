"""Runs all benchmarks, with a scale's initial policy and the number of threads of its training runs.

Training writes to a temporary folder only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cases import EXPERIMENT
from bench.cost import matmul_peak
from bench.generate import compare_with_generate
from bench.peers import Peer, run_peer
from bench.results import Measured, Result
from bench.retrieval import BATCH, retrieval_rates
from bench.steps import arm_steps
from bench.trees import tree_costs
from turncredit.config.load import Scale
from turncredit.data.questions import read_split
from turncredit.policy.model import load_policy
from turncredit.policy.tokenizer import Codec
from turncredit.retrieval.lifecycle import retriever
from turncredit.retrieval.manifest import read_manifest
from turncredit.tasks.registry import make_task
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.search.environment import SERVICE
from turncredit.tasks.search.services import SearchService
from turncredit.training.run import set_threads
from turncredit.training.run_folder import RunPaths


def run_benchmark(scale: Scale, root: Path, steps: int, peers: Sequence[Peer] = ()) -> Iterator[Result]:
    """Measure everything, one part after another.

    Args:
        scale: the arms of its experiment ``search`` are measured.
        root: the clone, with data, index and initial policy of the scale.
        steps: measured training steps of each arm, and pairs of steps or rollouts in each comparison.
        peers: programs to compare with, where they are installed.

    Raises:
        ConfigError: the scale has no search experiment.
        DataError: data or index is missing or altered.
        CheckpointError: no initial policy.
        RetrieverError: the retriever cannot be reached.
        ProcessError: a peer's program failed.
    """
    arms = scale.experiments[EXPERIMENT].arms if EXPERIMENT in scale.experiments else [""]
    configs = [scale.run(EXPERIMENT, arm, 0) for arm in arms]
    config, paths = configs[0], RunPaths.under(root, configs[0])
    set_threads(config)
    assert isinstance(config.task, QuestionTaskConfig)
    top_k = config.task.top_k
    questions = read_split(paths.data, "train", config.train_on)
    read_manifest(paths.index)
    codec, policy = Codec.load(paths.policy), load_policy(paths.policy, config.device)

    peak = matmul_peak(scale.device)
    yield Measured("machine", "float32 matrix product", "threads", scale.threads)
    yield Measured("machine", "float32 matrix product", "GFLOP/s", peak / 1e9)
    with TemporaryDirectory() as scratch, retriever(paths.index, scale.retriever) as shared:
        for config in configs:
            with retriever(paths.index, scale.retriever) as search:  # the same server with an empty cache
                yield from arm_steps(config, replace(paths, checkpoints=Path(scratch, config.arm)),
                                     {SERVICE: SearchService(search, top_k)}, steps, peak)
        yield from tree_costs(config, paths.policy, shared, questions)
        queries = list(dict.fromkeys(hop.query for question in questions for hop in question.plan))[:16 * BATCH]
        yield from retrieval_rates(paths.data, paths.index, scale.retriever, queries, top_k,
                                   Path(scratch, "index"))
    task = make_task(config.task)
    prompts = [task.start(question, codec.count, codec.cut).reset() for question in questions[:BATCH]]
    contexts = list(map(codec.encode_prompt, prompts))
    yield from compare_with_generate(policy, codec, contexts, config.task.max_turn_tokens)
    for peer in peers:  # last, when nothing else uses the cores and the memory
        yield from run_peer(peer, root, scale.name, steps, scale.threads)
