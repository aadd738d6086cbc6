"""The policies that RL training starts from: rows that rollouts would make, skills learnt, files whole."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.demonstrators import POLICY, SEARCH, TOOL, WORLD, Stage, make_stage
from tests.policies import tokenizer as other_tokenizer
from tests.tolerance import bound
from turncredit.config.data import PolicyConfig, WarmStartConfig
from turncredit.config.load import Scale
from turncredit.config.retriever import RetrieverConfig
from turncredit.config.task import TaskConfig
from turncredit.credit.rows import Row
from turncredit.errors import CheckpointError, DataError, NonFiniteError
from turncredit.miniature import warm_start
from turncredit.miniature.facts import load_facts
from turncredit.miniature.questions import known_facts
from turncredit.miniature.warm_start import (
    demonstration_rows,
    imitate,
    make_expert,
    make_initial,
    make_tokenizer,
    render,
)
from turncredit.policy.engines.base import Sample
from turncredit.policy.model import load_policy, make_tiny_policy, save_policy, token_logprobs
from turncredit.policy.tokenizer import END, Codec
from turncredit.rollout.batched import rollout
from turncredit.tasks.registry import TASKS, all_tags, make_task
from turncredit.tasks.search import services
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.search.demonstrations import FLAWS
from turncredit.tasks.search.environment import SERVICE
from turncredit.tasks.search.services import SearchService
from turncredit.training.batch import Batch
from turncredit.types import TurnStop

EACH_TASK = pytest.mark.parametrize("task", [SEARCH, TOOL], ids=lambda task: task.name)
DEGRADED = {"no_search": 0.3, "wrong_query": 0.3, "repeated_search": 0.3, "broken_tags": 0.3}
START = WarmStartConfig(batch=8, expert_steps=3, degraded_steps=2, one_hop_epochs=2, warmup_steps=1, threads=1,
                        flaws=dict.fromkeys(FLAWS, 0.5))
ALGORITHMS = yaml.safe_load((Path(__file__).parents[2] / "config" / "algorithms.yaml").read_text())["algorithms"]


def scale(*tasks: TaskConfig, **changes: object) -> Scale:
    experiments = {task.name: {"task": task, "train_on": ["facts"], "arms": {"a": {"algorithm": "MT-PPO"}}}
                   for task in tasks or (SEARCH, TOOL)}
    return Scale.model_validate({"name": "test", "world": WORLD, "policy": POLICY, "warm_start": START,
                                 "experiments": experiments, "algorithms": ALGORITHMS} | changes)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = make_stage(tmp_path_factory.mktemp("stage"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "retriever", made.served)
        yield made


def rows(stage: Stage, task: TaskConfig = SEARCH, *, degraded: bool = False, **changes: object) -> Iterator[list[Row]]:
    return demonstration_rows(scale(**changes), [task], stage.data, stage.root, stage.codec, degraded=degraded)


# --- the tokenizer ----------------------------------------------------------------------------------------------------

def test_a_tag_is_one_token_and_what_episodes_hold_comes_back(stage: Stage) -> None:
    for tag in all_tags():
        assert len(stage.codec.encode_observation(tag)) == 1
    for demonstration in stage.play(SEARCH, stage.asked(SEARCH)):
        for text in (*demonstration.text_K, *(seen.text for seen in demonstration.observation_K)):
            assert stage.codec.decode(stage.codec.encode_observation(text)) == text


def test_the_same_world_gives_the_same_tokenizer(stage: Stage, tmp_path: Path) -> None:
    make_tokenizer(stage.data, POLICY, tmp_path / "again")
    for file in stage.tokenizer.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_a_given_policys_tokenizer_is_used_as_it_is(stage: Stage, tmp_path: Path) -> None:
    other_tokenizer().save_pretrained(tmp_path / "given")
    given = PolicyConfig(path_or_id=str(tmp_path / "given"))
    make_tokenizer(stage.data, given, tmp_path / "tokenizer")
    text = "<think> I look up Nairobi </think>"
    assert Codec.load(tmp_path / "tokenizer").encode_observation(text) == \
        Codec.load(tmp_path / "given").encode_observation(text) != stage.codec.encode_observation(text)


def test_a_tokenizer_that_is_not_there_leaves_nothing(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no readable tokenizer"):
        make_tokenizer(stage.data, PolicyConfig(path_or_id=str(tmp_path / "none")), tmp_path / "tokenizer")
    assert list(tmp_path.iterdir()) == []


# --- rows -------------------------------------------------------------------------------------------------------------

@EACH_TASK
def test_loss_is_on_what_was_said_and_on_nothing_else(stage: Stage, task: TaskConfig) -> None:
    for demonstration in stage.play(task, stage.asked(task), **DEGRADED):
        row = render(demonstration, stage.codec)
        ids, mask = row.transcript.ids, row.loss_mask
        assert len(ids) == len(mask)
        said = [i for i, loss in zip(ids, mask, strict=True) if loss]
        assert stage.codec.decode(said) == "".join(demonstration.text_K)
        assert mask[-1] == 1  # nothing after the last turn is read
        seen = stage.codec.decode([i for i, loss in zip(ids, mask, strict=True) if not loss])
        prompt = stage.codec.decode(stage.codec.encode_prompt(demonstration.prompt))
        assert seen.startswith(prompt)
        for observation in demonstration.observation_K[:-1]:
            assert observation.text in seen
        if task is TOOL and len(demonstration.text_K) > 1:
            assert seen.removeprefix(prompt).startswith(f"{END}<|user|>")
        assert row.owned_K == (True,) * len(demonstration.text_K)


class Script:
    """An engine that says what demonstrations said, turn by turn."""

    def __init__(self, text_K: Sequence[str], codec: Codec) -> None:
        self._turns = [codec.encode_observation(said) for said in text_K]

    def generate(self, contexts: Sequence[Sequence[int]], **_: object) -> list[Sample]:
        said = [self._turns.pop(0) for _ in contexts]  # none once the episode is over
        return [Sample(ids, (0.0,) * len(ids), TurnStop.TAG) for ids in said]


@EACH_TASK
def test_a_row_is_the_rollout_of_an_agent_that_says_the_same(stage: Stage, task: QuestionTaskConfig) -> None:
    """Prompt, scaffolding and order of tokens are those that the trained policy will meet, id by id."""
    questions = stage.asked(task)
    for question, demonstration in zip(questions, stage.play(task, questions, **DEGRADED), strict=True):
        engine = Script(demonstration.text_K, stage.codec)
        services = {SERVICE: SearchService(stage.search, task.top_k)}
        group, = rollout([question], make_task(task), engine, services, stage.codec,  # type: ignore[arg-type]
                         branching=(1,) * task.max_turns, seed_of=None, temperature=1.0)
        played, row = group.transcripts[0], render(demonstration, stage.codec)
        assert row.transcript.ids == played.ids
        assert row.loss_mask.tolist() == played.loss_mask.tolist()
        assert row.transcript.turn_id.tolist() == played.turn_id.tolist()
        assert row.transcript.stop == played.stop


def of_questions(chunk: Sequence[Row]) -> list[str]:
    return [row.transcript.item_id for row in chunk]


def test_expert_rows_take_one_hop_first_and_then_everything(stage: Stage) -> None:
    first, second = itertools.islice(rows(stage), 2)
    one_hop = {question.id for question in stage.questions if question.hops == 1}
    everything = sorted(question.id for question in stage.questions)
    ids = of_questions(first)
    warm = START.one_hop_epochs * len(one_hop)
    assert sorted(ids[:warm]) == sorted([*one_hop] * START.one_hop_epochs)
    assert sorted(ids[warm:]) == everything
    assert sorted(of_questions(second)) == everything
    assert of_questions(second) != ids[warm:]


def test_degraded_rows_take_every_question_twice(stage: Stage) -> None:
    first = next(rows(stage, degraded=True))
    assert sorted(of_questions(first)) == sorted([question.id for question in stage.questions] * 2)


def test_two_turns_take_questions_of_one_hop(stage: Stage) -> None:
    hops = {question.id: question.hops for question in stage.questions}
    assert {hops[name] for name in of_questions(next(rows(stage, TOOL, degraded=True)))} == {1}


def test_most_rows_are_renamed_and_some_are_true(stage: Stage) -> None:
    asked = {question.id: question.question for question in stage.questions}
    chunks = itertools.islice(rows(stage), 6)
    true = [asked[row.transcript.item_id] in stage.codec.decode(row.transcript.prompt_ids)
            for chunk in chunks for row in chunk]
    assert sum(true) / len(true) == pytest.approx(0.2, abs=0.08)


def test_known_facts_are_recited_and_only_their_answers_are_trained(stage: Stage) -> None:
    knowing = {"world": WORLD.model_copy(update={"known_countries": 0.5}),
               "warm_start": START.model_copy(update={"recited": 0.25})}
    facts = {question.question: question for question in known_facts(load_facts(), 0.5, WORLD.seed)}
    (first, chunk), (same, plain) = (itertools.islice(rows(stage, **changes), 2) for changes in (knowing, {}))
    assert len(first) == len(same)  # copying is learnt before any fact
    assert (len(chunk) - len(plain)) / len(chunk) == pytest.approx(0.25, abs=0.01)
    for row in chunk[len(plain):]:
        text = stage.codec.decode(row.transcript.ids)
        recalled = re.findall("<think> recall ([^<]*)</think><answer> ([^<]*)</answer>", text)
        assert len(recalled) == 8
        assert set(recalled) <= {(question.plan[0].query, question.answers[0]) for question in facts.values()}
        said = [i for i, loss in zip(row.transcript.ids, row.loss_mask, strict=True) if loss]
        answers = "".join(f"<answer> {value}</answer>" for _, value in recalled)
        assert stage.codec.decode(said) in (answers, f"<think> recall {recalled[0][0]}</think>{answers}")


def test_what_is_answered_from_memory_is_never_renamed(stage: Stage) -> None:
    asked = {question.id: question.question for question in stage.questions}
    start = START.model_copy(update={"flaws": dict.fromkeys(FLAWS, 0.0) | {"from_memory": 0.5}})
    for row in next(rows(stage, degraded=True, warm_start=start)):
        if "recall" in "".join(turn.text for turn in row.transcript.turns):
            assert asked[row.transcript.item_id] in stage.codec.decode(row.transcript.prompt_ids)


@pytest.mark.parametrize("degraded", [False, True])
def test_rows_are_the_seeds(stage: Stage, degraded: bool) -> None:
    def ids(seed: int) -> list[list[int]]:
        settings = START.model_copy(update={"seed": seed})
        return [row.transcript.ids for row in next(rows(stage, degraded=degraded, warm_start=settings))]

    assert ids(0) == ids(0)
    assert ids(0) != ids(1)


# --- imitation --------------------------------------------------------------------------------------------------------

def loss_of(model: torch.nn.Module, chunk: Sequence[Row]) -> float:
    micro, = Batch.of(chunk).micro_batches(range(len(chunk)), 10**6)
    with torch.no_grad():
        found, _ = token_logprobs(model, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T, 1.0)  # type: ignore[arg-type]
    return -found.mean().item()


def test_the_loss_falls_also_on_episodes_that_were_not_seen(stage: Stage) -> None:
    chunks = rows(stage)
    held_out = next(chunks)[-20:]
    model = make_tiny_policy(POLICY, len(stage.codec.tokenizer), 0)
    before = loss_of(model, held_out)
    imitate(model, chunks, START, steps=25, learning_rate=START.expert_learning_rate)
    assert before > 6  # about ln 1500
    assert loss_of(model, held_out) < 0.8 * before
    assert not model.training


@EACH_TASK
def test_every_step_is_a_batch_and_each_row_of_a_chunk_comes_once(stage: Stage, task: TaskConfig) -> None:
    chunk = next(rows(stage, task, degraded=True))
    steps = list(warm_start._steps(iter([chunk]), START))
    assert len(steps) == len(chunk) // START.batch
    lengths = sorted(len(row.transcript.ids) for row in chunk)
    packed = [int(n) for micros in steps for micro in micros for n in micro.attention_B_T.sum(1)]
    assert len(packed) == len(steps) * START.batch
    assert sum(packed) <= sum(lengths)
    for micros in steps:
        assert sum(len(micro.ids_B_T) for micro in micros) == START.batch


def test_a_chunk_smaller_than_a_batch_is_one_step(stage: Stage) -> None:
    chunk = next(rows(stage))[:5]
    micros, = warm_start._steps(iter([chunk]), START)
    assert sum(len(micro.ids_B_T) for micro in micros) == 5


def test_a_loss_that_is_not_finite_ends_it(stage: Stage) -> None:
    model = make_tiny_policy(POLICY, len(stage.codec.tokenizer), 0)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="the warm start's gradient is not finite"):
        imitate(model, rows(stage), START, steps=2, learning_rate=1e-3)


# --- from files to files ----------------------------------------------------------------------------------------------

def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_expert_and_initial_policies_are_whole_folders_and_the_seeds(stage: Stage, tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_expert(scale(), stage.data, stage.root, stage.tokenizer, tmp_path / name / "expert")
        for task in (SEARCH, TOOL):
            make_initial(scale(), task, stage.data, stage.root, tmp_path / name / "expert", tmp_path / name / task.name)
    folders = ["expert", SEARCH.name, TOOL.name]
    made = {name: weights(tmp_path / "one" / name) for name in folders}
    assert made == {name: weights(tmp_path / "two" / name) for name in folders}
    assert len(set(made.values())) == 3
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(folders)
    for name in folders:
        load_policy(tmp_path / "one" / name)
        assert Codec.load(tmp_path / "one" / name).encode_observation("<think> find") == \
            stage.codec.encode_observation("<think> find")


@pytest.mark.numeric
def test_a_given_policy_is_where_the_expert_begins(stage: Stage, tmp_path: Path) -> None:
    save_policy(make_tiny_policy(POLICY, len(stage.codec.tokenizer), 7), tmp_path / "given", stage.codec.tokenizer)
    given = POLICY.model_copy(update={"path_or_id": str(tmp_path / "given")})
    rate = 1e-9
    still = START.model_copy(update={"expert_learning_rate": rate, "muon_learning_rate": rate, "expert_steps": 1})
    make_expert(scale(policy=given, warm_start=still), stage.data, stage.root, stage.tokenizer, tmp_path / "expert")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("given", "expert"))
    for name, weight in before.items():  # one step moves a weight by about its learning rate, and rounds the sum
        assert (after[name] - weight).abs().max() <= 2 * rate + bound(1, weight.abs().max().item()), name


def test_the_expert_policy_learns_every_task(stage: Stage) -> None:
    chunk = next(demonstration_rows(scale(), [SEARCH, TOOL], stage.data, stage.root, stage.codec, degraded=False))
    texts = [row.transcript.turns[0].text for row in chunk]
    for tag in ("<search>", "<tool>"):
        assert any(tag in text for text in texts)


@pytest.mark.parametrize("file", ["corpus.jsonl", "questions/chain.train.jsonl"])
def test_an_altered_world_is_refused_and_nothing_is_written(stage: Stage, tmp_path: Path, file: str) -> None:
    shutil.copytree(stage.data, tmp_path / "data")
    path = tmp_path / "data" / file
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    for make in (lambda out: make_tokenizer(tmp_path / "data", POLICY, out),
                 lambda out: make_expert(scale(), tmp_path / "data", stage.root, stage.tokenizer, out)):
        with pytest.raises(DataError, match=f"{path.name}: differs from the sha256 in world.json\n  -> make it"):
            make(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_two_turns_without_a_question_of_one_hop_are_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = [question for question in stage.questions if question.hops > 1]
    monkeypatch.setitem(TASKS, "tool_search", replace(TASKS["tool_search"], read_items=lambda *_: bridge))
    with pytest.raises(DataError, match="no train item of task 'tool_search' fits into 2 turns"):
        rows(stage, TOOL)


def test_the_retriever_is_asked_for_by_its_settings(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def served(index: Path, config: RetrieverConfig):
        asked.append((index, config))
        return stage.served(index, config)

    monkeypatch.setattr(services, "retriever", served)
    rows(stage, retriever=RetrieverConfig(timeout_s=3))
    assert asked == [(stage.root, RetrieverConfig(timeout_s=3))]
