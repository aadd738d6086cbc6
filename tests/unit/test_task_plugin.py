"""A new task is its own files and a registry line: a toy game, and a toy task that makes two kinds of request."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field

from tests import small_run
from tests.engines import OneByOne
from tests.policies import codec, model
from tests.trees import transcript, turn
from tests.unit.test_rollout import seed_of
from turncredit.config.load import Scale, load_scale
from turncredit.config.retriever import RetrieverConfig
from turncredit.config.task import RewardConfig, TaskConfig
from turncredit.errors import ConfigError, TaskError
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.tokenizer import Codec
from turncredit.reporting.schema import evaluation_schema, metrics_schema, read_cells, typed
from turncredit.rollout import asynchronous, batched
from turncredit.tasks.env import Message, Request, Service, Step
from turncredit.tasks.plugin import Metric, Rewards, ServiceSettings, TaskPlugin
from turncredit.tasks.registry import TASKS
from turncredit.training.run import evaluate_run, train_run
from turncredit.training.run_folder import RunPaths
from turncredit.types import Observation, StopReason, Transcript, TurnStop

ROOT = Path(__file__).parents[2]


# A game on a line: a turn of even length moves right, any other left; the goal is some steps away --------------------

@dataclass(frozen=True)
class Level:
    id: str
    dataset: str
    goal: int


class GameConfig(TaskConfig):
    name: Literal["toy"]
    stride: int = Field(1, ge=1)


class GameRewards(RewardConfig):
    goal: float = 1.0
    move: float = Field(-0.1, le=0)


@dataclass
class Game:
    config: GameConfig
    level: Level
    position: int = 0
    turns: int = 0

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": f"Go to {self.level.goal}"}]

    def request(self, text: str) -> None:
        return None

    def step(self, text: str, stop: TurnStop, response: None) -> Step:
        self.turns += 1
        self.position += self.config.stride if len(text) % 2 == 0 else -self.config.stride
        seen = Observation(f"at {self.position}", data=self.position)
        if self.position == self.level.goal:
            return Step(seen, StopReason.ANSWERED)
        return Step(seen, StopReason.TURN_LIMIT if self.turns == self.config.max_turns else None)

    def fork(self) -> Game:
        return replace(self)


@dataclass(frozen=True)
class GameTask:
    config: GameConfig
    stop_tags: tuple[str, ...] = ("</move>",)

    def start(self, item: Level, count_tokens: object, cut: object) -> Game:
        return Game(self.config, item)


@dataclass(frozen=True)
class GameReward:
    content: str
    values: GameRewards

    def __call__(self, played: Transcript, item: Level) -> Rewards:
        solved, end = played.stop is StopReason.ANSWERED, played.turns[-1].observation.data
        outcome = self.values.goal * solved
        return Rewards(
            tuple(self.values.move for _ in played.turns), outcome,
            {"solved": float(solved), "distance": abs(item.goal - end), "moves": len(played.turns)},
            {"goal": outcome, "move": self.values.move * len(played.turns)}, {"goal": item.goal, "end": str(end)})


@contextmanager
def no_services(config: TaskConfig, settings: ServiceSettings) -> Iterator[Mapping[str, Service]]:
    yield {}


def levels(data: Path, split: str, datasets: Sequence[str] | None) -> list[Level]:
    return [Level(f"{split}-{n}", "line", (1, -1)[n % 2]) for n in range(6)]


GAME = TaskPlugin(
    name="toy", config=GameConfig, rewards=GameRewards, make_task=GameTask,
    make_reward=lambda config, content, values: GameReward(content, values),
    open_services=no_services, read_items=levels, tags=("move",),
    metrics=(Metric("solved"), Metric("distance", "number"), Metric("moves", "count", in_training=False)),
    components=("goal", "move"), columns={"goal": "number", "end": "name"}, datasets=("line",),
    stop_reasons=(StopReason.ANSWERED, StopReason.TURN_LIMIT))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", GAME)


def scale(folder: Path, **experiment: Any) -> Scale:
    """A scale of the toy game, read from YAML."""
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "algorithms.yaml").write_text((ROOT / "config" / "algorithms.yaml").read_text())
    training = small_run.TRAINING.model_dump(mode="json", exclude_none=True) | {"steps": 1}
    content = {
        "world": {}, "policy": {"path_or_id": "given"}, "rewards": {"toy": {"goal": 2.0}},
        "experiments": {"game": {
            "task": {"name": "toy", "max_turns": 3, "max_turn_tokens": 8, "max_context_tokens": 120},
            "train_on": ["line"], "training": training,
            "arms": {"MT-PPO": {"algorithm": "MT-PPO"}, "MT-GRPO": {"algorithm": "MT-GRPO"}, "far": {
                "algorithm": "MT-PPO", "overrides": {"task": {"stride": 2}, "rewards": {"move": 0.0}}}}} | experiment}}
    (folder / "config" / "test.yaml").write_text(yaml.safe_dump(content))
    return load_scale("test", folder / "config")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("arm", ["MT-PPO", "MT-GRPO"])
def test_a_toy_game_goes_from_its_configuration_to_metrics_and_evaluation(tmp_path: Path, arm: str) -> None:
    config = scale(tmp_path).run("game", arm, 0)
    paths = RunPaths.under(tmp_path, config)
    paths.data.mkdir(parents=True)
    (paths.data / "world.json").write_text("{}")
    small_run._make_policy(paths.policy)
    assert len(Codec.load(paths.policy).encode_observation("<move></move>")) == 2  # its tags are tokens

    services = ServiceSettings(RetrieverConfig(), paths.index)
    train_run(config, services, paths)
    evaluate_run(paths.final_policy, config, services, data=paths.data, output=paths.run / "evaluation.csv")

    metrics = typed(read_cells(paths.run / "metrics.csv"), metrics_schema(["toy"]), paths.run / "metrics.csv")
    assert metrics["step"].tolist() == [0, 1]
    names = list(metrics.columns)
    assert names[7:13] == ["turns_mean", "distance_mean", "reward_total", "reward_outcome", "reward_intermediate",
                           "solved"]
    assert [name for name in names if name.startswith("stop_")] == ["stop_answered", "stop_turn_limit"]
    assert names[-8:] == ["component_goal", "component_move", "line_solved", "line_turns_mean",
                          "validation_line_solved", "validation_line_turns_mean", "validation_component_goal",
                          "validation_component_move"]
    row = metrics.iloc[1]
    assert row["reward_outcome"] == pytest.approx(2.0 * row["solved"])
    assert row["reward_intermediate"] == pytest.approx(-0.1 * row["turns_mean"])
    assert row["grad_norm"] > 0

    with (paths.run / "evaluation.csv").open(newline="") as file:
        header = next(csv.reader(file))
    assert header == ["dataset", "question_id", "goal", "end", "solved", "turns", "distance", "moves", "stop_reason",
                      "decoding", "component_goal", "component_move"]
    cells = read_cells(paths.run / "evaluation.csv")
    evaluation = typed(cells, evaluation_schema(["toy"]), paths.run / "evaluation.csv")
    assert evaluation["question_id"].tolist() == [f"test-{n}" for n in range(6)]
    assert (evaluation["moves"] == evaluation["turns"]).all()


@pytest.mark.usefixtures("registered")
def test_a_toy_games_settings_are_read_and_overridden_as_any_tasks(tmp_path: Path) -> None:
    read = scale(tmp_path)
    assert read.evaluated("game") == ("line",)
    assert read.run("game", "MT-PPO", 0).rewards == GameRewards(goal=2.0)
    far = read.run("game", "far", 0)
    assert isinstance(far.task, GameConfig)
    assert (far.task.stride, far.task.max_turns, far.rewards) == (2, 3, GameRewards(goal=2.0, move=0.0))
    assert type(far).model_validate(far.model_dump(mode="json")) == far


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("experiment", "says"), [
    ({"task": {"name": "toi"}}, "experiments.game.task.name = 'toi': no such task; did you mean 'toy'?"),
    ({"task": {"name": "toy", "strid": 2}}, "unknown key experiments.game.task.strid; did you mean 'stride'?"),
    ({"task": {"name": "toy", "stride": 0}}, "experiments.game.task.stride = 0: Input should be greater than or equal"),
    ({"task": {"name": "toy", "top_k": 3}}, "unknown key experiments.game.task.top_k; "),
    ({"train_on": ["facts"]}, "experiments.game.train_on: no dataset 'facts'; known: line"),
    ({"arms": {"a": {"algorithm": "MT-PPO", "overrides": {"rewards": {"moov": 0}}}}},
     "unknown key experiments.game.arms.a.overrides.rewards.moov; did you mean 'move'?"),
    ({"arms": {"a": {"algorithm": "MT-PPO", "overrides": {"rewards": {"move": 1}}}}},
     "experiments.game.arms.a.overrides.rewards.move = 1: Input should be less than or equal to 0")])
def test_faults_of_a_toy_games_settings_are_explained(tmp_path: Path, experiment: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        scale(tmp_path, **experiment)
    assert says in error.value.message


# What a plug-in returns is checked where episodes are scored ----------------------------------------------------------

GOOD = Rewards((-0.1, -0.1), 1.0, {"solved": 1.0, "distance": 0.5, "moves": 2}, {"goal": 1.0, "move": -0.2},
               {"goal": 1, "end": "1"})
NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(("changes", "says"), [
    ({"intermediate_K": (1.0,)}, "1 intermediate rewards for 2 turns"),
    ({"intermediate_K": (1.0, 0.0, 0.0)}, "3 intermediate rewards for 2 turns"),
    ({"intermediate_K": (1.0, NAN)}, r"intermediate_K\[1\] = nan"),
    ({"outcome": INFINITE}, "outcome = inf"),
    ({"metrics": GOOD.metrics | {"solved": NAN}}, r"metrics\['solved'\] = nan is no rate"),
    ({"metrics": GOOD.metrics | {"solved": 1.5}}, r"metrics\['solved'\] = 1.5 is no rate"),
    ({"metrics": GOOD.metrics | {"moves": 0.5}}, r"metrics\['moves'\] = 0.5 is no count"),
    ({"metrics": GOOD.metrics | {"moves": -1}}, r"metrics\['moves'\] = -1 is no count"),
    ({"metrics": GOOD.metrics | {"distance": INFINITE}}, r"metrics\['distance'\] = inf is no number"),
    ({"metrics": {"solved": 1.0, "moves": 2}}, "metrics: 'distance' is missing"),
    ({"metrics": GOOD.metrics | {"luck": 1.0}}, "metrics: 'luck' is not declared"),
    ({"components": {"goal": 1.0}}, "components: 'move' is missing"),
    ({"components": GOOD.components | {"move": NAN}}, r"components\['move'\] = nan"),
    ({"columns": {"goal": 1}}, "columns: 'end' is missing")])
def test_wrong_rewards_are_named(changes: dict[str, Any], says: str) -> None:
    played = transcript(turn(3, observed=(9,)), turn(4), question="level-7")
    GAME.check(GOOD, played)
    with pytest.raises(TaskError, match=f"task 'toy', rewards of an episode of 'level-7': {says}"):
        GAME.check(replace(GOOD, **changes), played)


def test_a_stop_reason_without_a_column_is_named() -> None:
    played = replace(transcript(turn(3), turn(4)), stop=StopReason.CONTEXT_OVERFLOW)
    with pytest.raises(TaskError, match="context_overflow"):
        GAME.check(GOOD, played)


@pytest.mark.usefixtures("registered")
def test_a_reward_too_few_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", replace(GAME, make_reward=lambda config, content, values: (
        lambda played, item: replace(GameReward(content, values)(played, item), intermediate_K=()))))
    config = scale(tmp_path).run("game", "MT-PPO", 0)
    paths = RunPaths.under(tmp_path, config)
    paths.data.mkdir(parents=True)
    (paths.data / "world.json").write_text("{}")
    small_run._make_policy(paths.policy)
    with pytest.raises(TaskError, match="0 intermediate rewards"):
        train_run(config, ServiceSettings(RetrieverConfig(), paths.index), paths)


# Two kinds of request -------------------------------------------------------------------------------------------------

@dataclass
class Inquiry:
    """Searches in a turn of even length and asks a judge in any other; needs nothing in its last turn."""

    config: TaskConfig
    turns: int = 0

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": "Kenya"}]

    def request(self, text: str) -> Request | None:
        last = self.turns + 1 == self.config.max_turns
        return None if last else Request("search", text) if len(text) % 2 == 0 else Request("judge", (text, self.turns))

    def step(self, text: str, stop: TurnStop, response: Any) -> Step:
        assert (response is None) == (self.request(text) is None)
        self.turns += 1
        return Step(Observation(f" {response}", data=response),
                    StopReason.TURN_LIMIT if self.turns == self.config.max_turns else None)

    def fork(self) -> Inquiry:
        return replace(self)


@dataclass(frozen=True)
class InquiryTask:
    config: TaskConfig
    stop_tags: tuple[str, ...] = ()

    def start(self, item: Level, count_tokens: object, cut: object) -> Inquiry:
        return Inquiry(self.config)


@dataclass
class Echo:
    """Answers with its own name and the length of what it was asked; notes each call."""

    name: str
    calls: list[list[Any]] = field(default_factory=list)

    def answer(self, bodies: Sequence[Any]) -> list[Any]:
        self.calls.append(list(bodies))
        return [f"{self.name} {len(body)}" for body in bodies]


@pytest.mark.parametrize("branching", [(3, 1, 1), (2, 2, 1)])
def test_a_task_with_two_kinds_of_request_plays_the_same_in_both_rollouts(branching: tuple[int, ...]) -> None:
    task = InquiryTask(TaskConfig(name="inquiry", max_turns=3, max_turn_tokens=8, max_context_tokens=120))
    engine, items, groups, echoes = HFEngine(model(), codec()), levels(Path(), "test", None), [], []
    for play, player in ((batched.rollout, engine), (asynchronous.rollout, OneByOne(engine))):
        engine.reset_prefix_cache()
        services = {name: Echo(name) for name in ("search", "judge")}
        echoes.append(services)
        groups.append(play(items, task, player, services, codec(), branching=branching, temperature=1.0,
                           seed_of=seed_of))
    together, paced = groups
    for left, right in zip(together, paced, strict=True):
        assert left.node_L_K == right.node_L_K
        for a, b in zip(left.transcripts, right.transcripts, strict=True):
            assert a.ids == b.ids
            assert [t.observation for t in a.turns] == [t.observation for t in b.turns]
    for leaf in (leaf for group in together for leaf in group.transcripts):
        for played in leaf.turns[:-1]:
            kind, length = ("search", len(played.text)) if len(played.text) % 2 == 0 else ("judge", 2)
            assert played.observation.data == f"{kind} {length}"
    for name in ("search", "judge"):
        assert len(echoes[0][name].calls) == 2  # one call a turn that can ask
        assert all(len(bodies) == 1 for bodies in echoes[1][name].calls)
        flat = [sorted(map(str, (body for bodies in services[name].calls for body in bodies))) for services in echoes]
        assert flat[0] == flat[1]
