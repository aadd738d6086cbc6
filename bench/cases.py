"""Benchmark episodes of fixed shape, and our GRPO step on them.

Every turn counts as a search and gets the same passage back, so that episodes differ only in what the
policy samples. Each case is then run by a peer (TRL, vLLM) with the same policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from bench.trees import SearchingTask
from turncredit.config.algorithm import Algorithm
from turncredit.config.load import RunConfig, load_scale
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import make_estimator
from turncredit.data.questions import read_split
from turncredit.errors import ConfigError
from turncredit.evaluation import EpisodeRunner
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import load_policy
from turncredit.policy.tokenizer import Codec, load_tokenizer
from turncredit.tasks.env import Message
from turncredit.tasks.plugin import Rewards
from turncredit.tasks.registry import make_task
from turncredit.tasks.search import TASK
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.search.environment import SERVICE
from turncredit.tasks.search.passages import format_passages
from turncredit.tasks.search.protocol import RULES
from turncredit.tasks.search.services import SearchService
from turncredit.training.interrupt import StopRequest
from turncredit.training.learner import Learner
from turncredit.training.loop import Progress, Trainer
from turncredit.training.manifest import now
from turncredit.training.run import set_threads
from turncredit.training.run_folder import RunPaths
from turncredit.types import Document, Question, Transcript

EXPERIMENT = "search"
QUESTIONS, GROUP = 8, 8
TURN_TOKENS = 16
NO_LEARNING = 1e-12  # a learning rate that leaves float32 weights unchanged
GRPO = Algorithm(estimator="group", placement="terminal", content="outcome", rollout="chains")
PASSAGE = "The passages say that the place in question lies in the north of the country, by the sea."


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of episode.

    Attributes:
        name: shown in the results.
        turns: number of turns in every episode.
        ends: True: the policy ends its turns, by a tag or its end token. False: each turn has ``TURN_TOKENS`` tokens.
    """

    name: str
    turns: int
    ends: bool


def comparison_run(root: Path, scale: str) -> tuple[RunConfig, RunPaths]:
    """The run whose policy and prompts are compared; also sets this process's threads and seeds."""
    settings = load_scale(scale, root / "config")
    config = settings.run(EXPERIMENT, next(iter(settings.experiments[EXPERIMENT].arms)), 0)
    set_threads(config)
    return config, RunPaths.under(root, config)


def cases(max_turns: int) -> tuple[Case, ...]:
    """One turn of fixed length, several of fixed length, and several that the policy ends."""
    return (Case(f"1 turn of {TURN_TOKENS} tokens", 1, ends=False),
            Case(f"{max_turns} turns of {TURN_TOKENS} tokens", max_turns, ends=False),
            Case(f"{max_turns} turns, ended by the policy", max_turns, ends=True))


class FixedRetriever:
    """A ``Retriever`` that returns the same passage for every query, at no cost."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """See ``Retriever``."""
        return [[Document("0", "A place", PASSAGE, 1.0)] * top_k for _ in queries]


class _NoStopTags(SearchingTask):
    """Episodes whose turns end at the token limit only."""

    @property
    def stop_tags(self) -> tuple[str, ...]:
        return ()


def even_share(ids: Sequence[int]) -> float:
    """A reward that a peer can compute from ids alone: the number of even ids per 1000."""
    return 1000 * sum(i % 2 == 0 for i in ids) / len(ids)


def reward(transcript: Transcript, item: Question) -> Rewards:
    """``even_share`` of the sampled tokens, as the outcome reward."""
    sampled = [i for turn in transcript.turns for i in turn.sampled_ids]
    return Rewards((0.0,) * len(transcript.turns), even_share(sampled), {metric.name: 0.0 for metric in TASK.metrics},
                   dict.fromkeys(TASK.components, 0.0), {"hops": item.hops, "prediction": ""})


@dataclass(frozen=True, slots=True)
class Setting:
    """What both sides of a comparison share.

    Attributes:
        case: the kind of episode.
        config: the run, with settings that both sides can take.
        policy: the policy's folder.
        questions: the questions of every step.
        tokenizer: the policy's; for turns of fixed length its end token is an id that the policy cannot sample.
        end_ids: token ids that end a turn.
    """

    case: Case
    config: RunConfig
    policy: Path
    questions: Sequence[Question]
    tokenizer: PreTrainedTokenizerFast
    end_ids: tuple[int, ...]

    @classmethod
    def of(cls, case: Case, config: RunConfig, paths: RunPaths, **training: Any) -> Setting:
        """The setting of a case, from an experiment's run.

        Args:
            case: the kind of episode.
            config: gives the task and the sizes of micro-batches.
            paths: give data and initial policy.
            training: training settings to replace.

        Raises:
            ConfigError: the context window is too short, or a tag is more than one token of the policy.
            DataError, CheckpointError: see ``read_split`` and ``load_policy``.
        """
        vocabulary = load_policy(paths.policy, "cpu").config.vocab_size
        tokenizer = load_tokenizer(paths.policy)
        if case.ends:
            tags = make_task(config.task).stop_tags
            ids_of_tag = [tokenizer(tag, add_special_tokens=False)["input_ids"] for tag in tags]
            if any(len(ids) != 1 for ids in ids_of_tag):
                raise ConfigError(f"{paths.policy}: {' or '.join(tags)} is more than one token, and TRL can end turns "
                                  "at single tokens only", "use a policy with a warm start, such as that of scale mini")
            end_ids = (*sorted(Codec.load(paths.policy).end_ids), *(ids[0] for ids in ids_of_tag))
        else:  # ids beyond the policy's output head
            tokenizer.add_tokens([f"<|unsaid-{i}|>" for i in range(vocabulary + 1 - len(tokenizer))])
            end_ids = (len(tokenizer) - 1,)
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end_ids[0])
        task = config.task.model_copy(update={
            "max_turns": case.turns, "max_turn_tokens": config.task.max_turn_tokens if case.ends else TURN_TOKENS})
        settings = config.training.model_dump() | {
            "steps": 1, "trajectories_per_step": QUESTIONS * GROUP, "group_size": GROUP, "inner_epochs": 1,
            "minibatches": 1, "learning_rate": NO_LEARNING, "warmup_steps": 0, "kl_coefficient": 0.0,
            "entropy_coefficient": 0.0, "temperature": 1.0, "group_std": "sample", "loss_aggregation": "sequence",
            **training}
        changed = config.model_copy(update={"algorithm": GRPO, "task": task,
                                            "training": TrainingConfig.model_validate(settings)})
        made = cls(case, changed, paths.policy, read_split(paths.data, "train", config.train_on)[:QUESTIONS],
                   tokenizer, end_ids)
        most = max(map(len, map(made.codec.encode_prompt, made.prompts))) + made.most_tokens
        if most > task.max_context_tokens:
            raise ConfigError(f"task.max_context_tokens = {task.max_context_tokens}: episodes of up to {most} tokens "
                              "do not fit", "raise it")
        return made

    @property
    def codec(self) -> Codec:
        """The codec of the tokenizer; where no turn is to end, only an id that is never sampled ends one."""
        made = Codec(self.tokenizer)
        if not self.case.ends:
            made.end_ids = frozenset(self.end_ids)
        return made

    @property
    def prompts(self) -> list[list[Message]]:
        """The prompt of each question's episodes."""
        codec, task = self.codec, make_task(self.config.task)
        return [task.start(question, codec.count, codec.cut).reset() for question in self.questions]

    @property
    def observation(self) -> str:
        """The observation after every turn but the last."""
        task, codec = self.task, self.codec
        [documents] = FixedRetriever().search([""], task.top_k)
        return format_passages(documents, RULES.grammar.result, task.max_observation_tokens, codec.count,
                               codec.cut).text

    @property
    def task(self) -> QuestionTaskConfig:
        """The settings of the search task."""
        assert isinstance(self.config.task, QuestionTaskConfig)
        return self.config.task

    @property
    def most_tokens(self) -> int:
        """The largest number of tokens after the prompt of an episode."""
        task = self.config.task
        return task.max_turns * task.max_turn_tokens + (task.max_turns - 1) * self.codec.count(self.observation)

    def runner(self, learner: Learner) -> EpisodeRunner:
        """The runner of these episodes with a learner's policy."""
        task = (SearchingTask if self.case.ends else _NoStopTags)(self.task, RULES)
        codec, services = self.codec, {SERVICE: SearchService(FixedRetriever(), self.task.top_k)}
        return EpisodeRunner(TASK, task, reward, HFEngine(learner.policy, codec), services, codec)

    def learner(self) -> Learner:
        """A new learner that starts from the policy."""
        return Learner(load_policy(self.policy, "cpu"), None, None, self.config.training)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The seconds of one step, and the number of tokens sampled in it."""

    sampling_s: float
    update_s: float
    tokens: int


class OurSteps:
    """Steps of our training loop on a setting, one at a time."""

    def __init__(self, setting: Setting) -> None:
        self._progress = Progress(started=now())
        learner = setting.learner()
        self._trainer = Trainer(
            setting.config, setting.runner(learner), make_estimator(GRPO, setting.config.training), learner,
            setting.questions, (), Path(), "bench", StopRequest())

    def step(self) -> StepCost:
        """Take one more step; all time after the rollout counts as the update."""
        self._progress = self._trainer.step(self._progress)
        row: Any = self._progress.rows[-1]
        return StepCost(row["seconds_rollout"], row["seconds_scoring"] + row["seconds_update"], row["tokens_sampled"])
