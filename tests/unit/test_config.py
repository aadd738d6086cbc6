"""The configuration is closed: what is written is known, in range, of one mind, and read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from turncredit.config import data as materials
from turncredit.config import experiment as experiment_config
from turncredit.config import load as settings
from turncredit.config import runtime as equipment
from turncredit.config.algorithm import Algorithm, Content
from turncredit.config.data import Dataset
from turncredit.config.load import RunConfig, Scale, load_scale, scale_names
from turncredit.config.training import TrainingConfig
from turncredit.errors import ConfigError
from turncredit.miniature.questions import DATASETS
from turncredit.tasks.registry import TASKS
from turncredit.tasks.search.config import SearchConfig, SearchRewards
from turncredit.tasks.search.demonstrations import FLAWS
from turncredit.tasks.tool_search.config import ToolRewards

ROOT = Path(__file__).parents[2]
SCALES = scale_names(ROOT / "config")
MODULES = (settings, experiment_config, materials, equipment)
MODELS = [model for module in MODULES for model in vars(module).values()
          if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__]
TASK_MODELS = [model for task in TASKS.values() for model in (task.config, task.rewards)]
MODELS += TASK_MODELS
TINY: dict[str, Any] = {
    "world": {}, "policy": {},
    "warm_start": {"flaws": dict.fromkeys(FLAWS, 0.5)},
    "experiments": {
        "search": {"task": {"name": "search"}, "train_on": ["facts"], "training": {"steps": 7}, "arms": {
            "GRPO-OR": {"algorithm": "GRPO-OR"},
            "mine": {"algorithm": "MT-PPO", "overrides": {"rewards": {"search_cost": 0.0},
                                                          "task": {"max_turns": 6}}}}},
        "task": {"task": {"name": "tool_search", "max_turns": 2}, "train_on": ["facts", "bridge"], "arms": {
            "one": {"algorithm": "MT-GRPO", "overrides": {"placement": "delayed", "content": "merged"}}}}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "algorithms.yaml").write_text((ROOT / "config" / "algorithms.yaml").read_text())
    return tmp_path


def changed(path: str, value: object) -> dict[str, Any]:
    """``TINY`` with a value put at a dotted path."""
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(TINY))
    *inside, last = path.split(".")
    place = copy
    for part in inside:
        place = place.setdefault(part, {})
    place[last] = value
    return copy


def load(folder: Path, content: object) -> Scale:
    (folder / "tiny.yaml").write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return load_scale("tiny", folder)


def refusal(folder: Path, content: object) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        load(folder, content)
    assert error.value.remedy
    return error.value


# --- what ships -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", SCALES)
def test_every_shipped_scale_parses_and_resolves_all_its_runs(name: str) -> None:
    scale = load_scale(name, ROOT / "config")
    runs = [scale.run(experiment, arm, seed) for experiment, found in scale.experiments.items()
            for arm in found.arms for seed in range(scale.seeds)]
    assert len({run.digest() for run in runs}) == len(runs)
    grid = {"GRPO-OR", "GRPO-MR", "MT-GRPO", "PPO-OR", "PPO-MR", "MT-PPO"}
    assert set(scale.algorithms) == {*grid, "RLOO-OR"}
    assert set(scale.experiments["search"].arms) == grid
    for run in runs:
        assert RunConfig.model_validate(run.model_dump(mode="json")) == run


def test_the_six_algorithms_are_the_grid() -> None:
    found = load_scale(SCALES[0], ROOT / "config").algorithms
    grid = {(estimator, placement, content): name for name, (estimator, placement, content) in
            {name: (a.estimator, a.placement, a.content) for name, a in found.items()}.items()}
    structures = {"OR": ("terminal", "outcome"), "MR": ("delayed", "merged")}
    for family, estimator in (("GRPO", "group"), ("PPO", "critic")):
        for suffix, (placement, content) in structures.items():
            assert grid[estimator, placement, content] == f"{family}-{suffix}"
        assert grid[estimator, "per_turn", "full"] == f"MT-{family}"


@pytest.mark.parametrize("name", SCALES)
def test_arms_of_an_experiment_have_equal_budgets(name: str) -> None:
    scale = load_scale(name, ROOT / "config")
    for experiment, found in scale.experiments.items():
        runs = [scale.run(experiment, arm, 0) for arm in found.arms]
        assert len({(run.training.model_dump_json(exclude={*TrainingConfig.CODE}), run.train_on) for run in runs}) == 1


@pytest.mark.parametrize("name", ["gpu", "paper"])
def test_at_the_scales_of_large_models_the_turns_alone_limit_invalid_turns(name: str) -> None:
    scale = load_scale(name, ROOT / "config")
    tasks = [scale.run(name, arm, 0).task for name, found in scale.experiments.items() for arm in found.arms]
    assert all(task.max_invalid_turns >= task.max_turns for task in tasks)


def test_the_datasets_are_those_that_the_world_can_make() -> None:
    assert set(get_args(Dataset)) == set(DATASETS)


def test_every_key_is_read_somewhere() -> None:
    """Found as an attribute of something that the code calls by the section's usual names."""
    receivers = {"config", "settings", "scale", "task", "training", "policy", "world", "retriever", "warm_start", "run",
                 "experiment", "found", "other", "arm", "arms[arm]", "overrides", "algorithm", "v", "values", "rewards",
                 "questions", "faiss", "engine", "launch", "checkpoint", "server",
                 "_config"}
    read: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "src" / "turncredit").rglob("*.py"):
        tree = ast.parse(path.read_text())
        own = {"self"} if path.stem in {module.__name__.rpartition(".")[2] for module in MODULES} else set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                receiver = ast.unparse(node.value).rpartition(".")[2]
                if receiver in receivers | own:
                    read[node.attr].add(receiver)
            elif isinstance(node, ast.Constant) and path.name == "config.py" and isinstance(node.value, str):
                read[node.value].add("getattr")  # the two overrides that are read by name
    assert len(MODELS) > 10
    assert [f"{model.__name__}.{key}" for model in MODELS for key in model.model_fields if not read[key]] == []


# --- one run ----------------------------------------------------------------------------------------------------------

def test_a_run_is_its_experiment_with_the_arms_overrides(folder: Path) -> None:
    scale = load(folder, TINY)
    run = scale.run("search", "mine", 3)
    assert isinstance(run.rewards, SearchRewards)
    assert (run.rewards.search_cost, run.task.max_turns, run.training.steps, run.seed) == (0.0, 6, 7, 3)
    assert run.algorithm == scale.algorithms["MT-PPO"]
    other = scale.run("task", "one", 0)
    assert isinstance(other.rewards, ToolRewards)
    assert other.algorithm == Algorithm(estimator="group", placement="delayed", content="merged", rollout="tree")
    assert scale.run("search", "GRPO-OR", 0).task == SearchConfig(name="search")  # the arm beside it is untouched
    assert scale.experiments["search"].task.max_turns == 4


@pytest.mark.parametrize(("change", "says"), [
    ({"estimator": "gruop"}, "algorithms.X.estimator = 'gruop': no such estimator; did you mean 'group'?"),
    ({"estimator": "rloo"}, "algorithms.X.placement = 'per_turn': estimator 'rloo' accepts terminal, delayed"),
    ({"placement": "perturn"}, "did you mean 'per_turn'?"), ({"rollout": "chain"}, "did you mean 'chains'?")])
def test_an_algorithm_of_unknown_words_is_refused(folder: Path, change: dict[str, str], says: str) -> None:
    words = {"estimator": "group", "placement": "per_turn", "content": "full", "rollout": "tree"} | change
    (folder / "algorithms.yaml").write_text(yaml.safe_dump({"algorithms": {"X": words}}))
    assert says in refusal(folder, TINY).message


@pytest.mark.parametrize(("arm", "overrides", "says"), [
    ("GRPO-OR", {"rollout": "single"}, "overrides: rollout = 'single': estimator 'group' accepts chains, tree"),
    ("RLOO-OR", {"placement": "per_turn"},
     "overrides: placement = 'per_turn': estimator 'rloo' accepts terminal, delayed"),
    ("PPO-OR", {"rollout": "tree"}, "overrides: rollout = 'tree': estimator 'critic' accepts single, chains")])
def test_overrides_that_an_estimator_does_not_accept_are_refused_when_read(folder: Path, arm: str, overrides: object,
                                                                          says: str) -> None:
    error = refusal(folder, changed("experiments.search.arms.mine", {"algorithm": arm, "overrides": overrides}))
    assert f"experiments.search.arms.mine.{says}" in error.message


def test_a_content_that_the_task_lacks_is_refused_when_read(folder: Path) -> None:
    error = refusal(folder, changed("experiments.task.arms.one.overrides.content", "retrieval"))
    assert "experiments.task.arms.one: task 'tool_search' has no content 'retrieval'" in error.message
    assert error.remedy == "use outcome, merged, full"


@pytest.mark.parametrize(("ask", "says"), [
    (("serch", "mine", 0), ["no experiment 'serch' at scale 'tiny'", "did you mean 'search'?"]),
    (("search", "mien", 0), ["no arm 'mien' in experiment 'search'", "did you mean 'mine'?"]),
    (("search", "mine", -1), ["seed -1 is negative", "use 0, 1, 2, ..."])])
def test_a_run_that_does_not_exist_is_refused(folder: Path, ask: tuple[str, str, int], says: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load(folder, TINY).run(*ask)
    assert (error.value.message, error.value.remedy) == tuple(says)


def test_settings_are_never_changed_in_place(folder: Path) -> None:
    scale = load(folder, TINY)
    with pytest.raises(ValidationError):
        scale.policy.layers = 9  # type: ignore[misc]


# --- same_as ----------------------------------------------------------------------------------------------------------

def twin(arm: dict[str, Any], **experiment: object) -> dict[str, Any]:
    return changed("experiments.twin", TINY["experiments"]["search"] | experiment | {"arms": {"again": arm}})


def test_an_equal_arm_shares_the_runs_of_the_one_it_names(folder: Path) -> None:
    same = TINY["experiments"]["search"]["arms"]["mine"]
    scale = load(folder, twin(same | {"same_as": "search/mine"}))
    assert scale.identical("twin", "again") == ("search", "mine")
    assert scale.identical("search", "mine") == ("search", "mine")


@pytest.mark.parametrize(("content", "says"), [
    (twin({"algorithm": "MT-PPO", "same_as": "search/mine"}), "same_as: search/mine differs in its settings"),
    (twin({"algorithm": "GRPO-OR", "same_as": "search/GRPO-OR"}, train_on=["bridge"]), "differs in its settings"),
    (twin({"algorithm": "MT-PPO", "same_as": "search/mien"}),
     "experiments.twin.arms.again.same_as: no trained arm 'search/mien'; did you mean 'search/mine'?"),
    (twin({"algorithm": "MT-PPO", "same_as": "search"}), "no trained arm 'search'"),
    (twin({"algorithm": "MT-PPO", "same_as": "twin/again"}), "no trained arm 'twin/again'")])
def test_a_twin_that_differs_or_is_not_trained_is_refused(folder: Path, content: dict[str, Any], says: str) -> None:
    error = refusal(folder, content)
    assert str(folder / "tiny.yaml") in error.message
    assert says in error.message


# --- refusals ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("path", "says"), [
    ("sedes", "unknown key sedes; did you mean 'seeds'?"),
    ("world.citys", "unknown key world.citys; did you mean 'cities'?"),
    ("policy.hiden_size", "did you mean 'hidden_size'?"),
    ("retriever.timeout", "did you mean 'timeout_s'?"),
    ("warm_start.flaw_spred", "did you mean 'flaw_spread'?"),
    ("rewards.search.retreival", "did you mean 'retrieval'?"),
    ("experiments.search.trainning", "did you mean 'training'?"),
    ("experiments.search.training.learnin_rate",
     "unknown key experiments.search.training.learnin_rate; did you mean 'learning_rate'?"),
    ("experiments.task.task.max_turn", "did you mean 'max_turns'?"),  # an experiment called as a section is
    ("experiments.search.arms.mine.algoritm", "did you mean 'algorithm'?"),
    ("experiments.search.arms.mine.overrides.rewards.serch_cost", "did you mean 'search_cost'?"),
    ("experiments.search.arms.mine.overrides.task.max_turn", "did you mean 'max_turns'?"),
    ("experiments.task.arms.one.overrides.rewards.exact_mach", "did you mean 'exact_match'?"),
    ("experiments.task.arms.one.overrides.rewards.search_cost", "did you mean 'search_answer'?"),  # another task's
    ("experiments.search.arms.mine.overrides.xyzzy", "known: content, placement, reading, rewards, rollout, task")])
def test_an_unknown_key_is_named_with_the_nearest_at_its_level(folder: Path, path: str, says: str) -> None:
    error = refusal(folder, changed(path, 1))
    assert error.message.startswith(f"{folder / 'tiny.yaml'}: unknown key {path}; ")
    assert says in error.message


@pytest.mark.parametrize(("path", "value", "says"), [
    ("seeds", 0, "seeds = 0: Input should be greater than or equal to 1"),
    ("seeds", "three", "seeds = 'three': Input should be a valid integer"),
    ("seeds", 1.5, "seeds = 1.5: Input should be a valid integer"),
    ("device", "gpu", "device = 'gpu': Input should be 'cpu' or 'cuda'; did you mean 'cpu'?"),
    ("experiments.search.training.steps", 0, "experiments.search.training.steps = 0: "),
    ("experiments.search.training.learning_rate", -1e-3, "learning_rate = -0.001: Input should be greater than 0"),
    ("experiments.search.training.learning_rate", float("nan"), "learning_rate = nan: "),
    ("rewards.search.correct", float("inf"), "rewards.search.correct = inf: Input should be a finite number"),
    ("rewards.serch", {}, "rewards.serch = {}: no such task; did you mean 'search'?"),
    ("rewards", 1, "rewards = 1: Input should be a valid dictionary"),
    ("experiments.search.task", {}, "experiments.search.task.name is missing: add it"),
    ("experiments.search.task.name", ["search"], "experiments.search.task.name = ['search']: no such task"),
    ("experiments.search.arms.mine.overrides.task.max_turns", 0,
     "experiments.search.arms.mine.overrides.task.max_turns = 0: Input should be greater than or equal to 1"),
    ("experiments.search.arms.mine.overrides.task.name", "tool_search",
     "experiments.search.arms.mine.overrides.task.name = 'tool_search': "),
    ("experiments.search.arms.mine.overrides.rewards.search_cost", -1,
     "experiments.search.arms.mine.overrides.rewards.search_cost = -1: Input should be greater than or equal to 0"),
    ("experiments.search.training.gamma", 1.1, "gamma = 1.1: Input should be less than or equal to 1"),
    ("experiments.search.training.group_size", 1, "group_size = 1: "),
    ("experiments.search.training.tree_branching", 1, "experiments.search.training.tree_branching = 1: a number above"),
    ("experiments.search.training.tree_branching", [1, 1], "training.tree_branching = [1, 1]: a number above 1, or a"),
    ("experiments.search.training.tree_branching", [4, 0], "training.tree_branching = [4, 0]: a number above 1, or a"),
    ("experiments.task.training.tree_branching", [4, 4, 1],
     "experiments.task.training.tree_branching = [4, 4, 1]: 3 numbers for 2 turns (task.max_turns); arm 'one'"),
    ("experiments.task.training.tree_branching", [1, 4],
     "experiments.task.training.tree_branching = [1, 4]: the last of 2 turns (task.max_turns) is sampled once"),
    ("experiments.search.training.group_std", "sampel", "'population' or 'sample'; did you mean 'sample'?"),
    ("experiments.search.task.name", "serch", "experiments.search.task.name = 'serch': "),
    ("experiments.search.task.name", "serch", "did you mean 'search'?"),
    ("experiments.search.task", None, "experiments.search.task = None: "),
    ("experiments.search.arms.mine.overrides.content", "ful", "did you mean 'full'?"),
    ("experiments.search.arms.mine.algorithm", "MT-POP",
     "experiments.search.arms.mine.algorithm: no algorithm 'MT-POP'; did you mean 'MT-PPO'?"),
    ("experiments.search.train_on", ["fact"], "experiments.search.train_on: no dataset 'fact'; did you mean 'facts'?"),
    ("world.in_domain", ["facts", "bridges"], "world.in_domain.1 = 'bridges': "),
    ("world.in_domain", ["facts", "bridges"], "did you mean 'bridge'?"),
    ("world.in_domain", ["facts", "chain"], "world.out_of_domain: 'chain' is named twice"),
    ("warm_start.flaws.no_search", 1.5, "warm_start.flaws.no_search = 1.5: Input should be less than or equal to 1"),
    ("warm_start.flaws", {"no_search": 0.5, "wrong_query": 0.5},
     "warm_start.flaws: no chance of repeated_search, broken_tags, from_memory; add it, from 0 to 1"),
    ("warm_start.flaws.no_serch", 0.5, "did you mean 'no_search'?"),
    ("experiments.search.task.max_context_tokens", 600,
     "task.max_context_tokens = 600: policy.max_positions = 512 is less; raise it")])
def test_a_value_that_cannot_be_is_named_with_its_key_and_what_could(folder: Path, path: str, value: object,
                                                                     says: str) -> None:
    error = refusal(folder, changed(path, value))
    assert error.message.startswith(f"{folder / 'tiny.yaml'}: ")
    assert says in error.message
    assert "Value error" not in error.message


def test_a_missing_key_is_named(folder: Path) -> None:
    content = {key: value for key, value in TINY.items() if key != "world"}
    assert "world is missing: add it" in refusal(folder, content).message
    assert "experiments.x.arms is missing: add it" in refusal(
        folder, changed("experiments.x", {"task": {"name": "search"}, "train_on": ["facts"]})).message


def test_all_faults_of_a_file_are_told_at_once(folder: Path) -> None:
    content = changed("sedes", 1) | {"threads": 0}
    message = refusal(folder, content).message
    assert "unknown key sedes" in message
    assert "threads = 0" in message


@pytest.mark.parametrize(("content", "says"), [
    ("seeds: [1", "while parsing a flow sequence"),
    ("- seeds", "expected a mapping at the top level"),
    ("", "expected a mapping at the top level"),
    ("seeds: 1\nworld: {}\nseeds: 2", "duplicate key 'seeds'"),
    ("world: {cities: 1, cities: 2}", "duplicate key 'cities'"),
    ("name: other", "key name does not belong in this file"),
    ("algorithms: {}", "key algorithms does not belong in this file"),
    ("a: &x [*x]", "tiny.yaml")])
def test_a_file_that_is_no_configuration_is_named(folder: Path, content: str, says: str) -> None:
    error = refusal(folder, content)
    assert error.message.startswith(str(folder / "tiny.yaml"))
    assert says in error.message
    assert "unicode string" not in error.message


def test_a_fault_of_an_anchor_is_told_once_with_its_places(folder: Path) -> None:
    experiments = "".join(f"  {name}: {{train_on: [facts], arms: {{}}, task: {{name: search}}, training: {training}}}\n"
                          for name, training in (("a", "&t {stepz: 3, gamma: 2}"), ("b", "*t"), ("c", "*t")))
    content = {key: value for key, value in TINY.items() if key != "experiments"}
    with pytest.raises(ConfigError) as error:
        load(folder, f"{yaml.safe_dump(content)}experiments:\n{experiments}")
    also = "(also in experiments.b.training, experiments.c.training)"
    assert f"unknown key experiments.a.training.stepz {also}; did you mean 'steps'?" in error.value.message
    assert f"experiments.a.training.gamma {also} = 2: Input should be" in error.value.message
    assert error.value.message.count(";") == 2


def test_merged_keys_may_be_overridden_and_shared(folder: Path) -> None:
    text = ("a: &a {steps: 7, gamma: 0.5}\nb: &b {<<: *a, steps: 9}\nc: {<<: *b, steps: 11}\nd: *b\n")
    with pytest.raises(ConfigError, match="unknown key a; ") as error:
        load(folder, yaml.safe_dump(TINY) + text)
    assert "stands twice" not in error.value.message


def test_a_file_that_is_not_text_is_named(folder: Path) -> None:
    (folder / "tiny.yaml").write_bytes(b"seeds: \xff")
    with pytest.raises(ConfigError, match=r"tiny\.yaml: .*can't decode byte"):
        load_scale("tiny", folder)


@pytest.mark.parametrize(("name", "says"), [
    ("min", "did you mean 'mini'?"), ("zzz", "known: "), ("../config/mini", "known: "),
    ("algorithms", "known: "), ("", "known: ")])
def test_a_scale_that_does_not_exist_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_scale(name, ROOT / "config")
    assert error.value.message.startswith(f"no scale {name!r} in ")
    assert says in error.value.remedy


def test_outside_a_clone_the_remedy_is_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no scale 'mini'.*\n  -> run in the clone, or say --root CLONE"):
        load_scale("mini", tmp_path / "config")


def bounds(model: type[BaseModel]) -> Iterator[tuple[str, object]]:
    """Values just outside each number's range."""
    for name, field in model.model_fields.items():
        for rule in field.metadata:
            if (least := getattr(rule, "ge", None)) is not None:
                yield name, least - 1
            if (least := getattr(rule, "gt", None)) is not None:
                yield name, least
            if (most := getattr(rule, "le", None)) is not None:
                yield name, most + 1
            if (most := getattr(rule, "lt", None)) is not None:
                yield name, most


NUMBERS: Callable[[Any], bool] = lambda annotation: annotation in (int, float)  # noqa: E731


def test_every_number_is_held_to_a_range_and_every_range_is_held() -> None:
    free = {"seed", *SearchRewards.model_fields, *ToolRewards.model_fields}  # any number is a reward
    for model in MODELS:
        tried = dict(bounds(model))
        open_ended = {name for name, field in model.model_fields.items() if NUMBERS(field.annotation)}
        if model is not RunConfig:  # made of checked parts
            assert open_ended - free <= set(tried), model.__name__
        for name, value in bounds(model):
            with pytest.raises(ValidationError) as error:
                model.model_validate({name: value})
            assert (name,) in {fault["loc"] for fault in error.value.errors()}, (model.__name__, name, value)


def test_the_defaults_are_in_range() -> None:
    assert TrainingConfig.model_validate(TrainingConfig().model_dump()) == TrainingConfig()
    assert set(get_args(Content)) == {"outcome", "merged", "retrieval", "full"}
