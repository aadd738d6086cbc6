"""A new estimator is a file and a registry line, with configuration keys of its own: two toy estimators show it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from tests.tolerance import assert_close, bound
from tests.trees import Given, transcript
from turncredit.config.base import StrictModel
from turncredit.config.load import load_scale
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import GroupEstimator, TrajectoryRewards, make_estimator
from turncredit.credit.grpo import EPSILON, group_zscore
from turncredit.credit.registry import ESTIMATORS, ROLLOUTS
from turncredit.credit.rows import rows_of
from turncredit.errors import ConfigError
from turncredit.types import Group, Observation, Turn, TurnStop

ROOT = Path(__file__).parents[2]


class StepGroups(GroupEstimator):
    """Turns compared with the turns that follow the same observation in other episodes (GiGPO's step groups)."""

    class Settings(StrictModel):
        step_weight: float = 1.0

    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        whole_L = group_zscore([sum(r.intermediate_K) + r.outcome for r in rewards], self.training.group_std)
        anchors: dict[str, list[tuple[int, int]]] = defaultdict(list)  # the observation before a turn -> its turns
        for leaf, episode in enumerate(group.transcripts):
            for k in range(len(episode.turns)):
                anchors[episode.turns[k - 1].observation.text if k else "start"].append((leaf, k))
        advantage_L_K = [[whole] * len(episode.turns)
                         for whole, episode in zip(whole_L.tolist(), group.transcripts, strict=True)]
        for members in anchors.values():
            to_go = [sum(rewards[leaf].intermediate_K[k:]) + rewards[leaf].outcome for leaf, k in members]
            for (leaf, k), step in zip(members, group_zscore(to_go, self.training.group_std).tolist(), strict=True):
                advantage_L_K[leaf][k] += self.settings.step_weight * step
        return advantage_L_K


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("turncredit.credit.step_groups")
    module.StepGroups = StepGroups
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(ESTIMATORS, "step_groups", {"per_turn": "step_groups:StepGroups"})
    monkeypatch.setitem(ROLLOUTS, "step_groups", ("chains",))


def algorithm_of(folder: Path, **settings: object):
    """The algorithm as a configuration file gives it."""
    (folder / "algorithms.yaml").write_text(yaml.safe_dump({"algorithms": {"GiGPO": {
        "estimator": "step_groups", "placement": "per_turn", "content": "full", "rollout": "chains",
        "settings": settings}}}))
    flaws = dict.fromkeys(("no_search", "wrong_query", "repeated_search", "broken_tags", "from_memory"), 0.5)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({
        "world": {}, "policy": {}, "warm_start": {"flaws": flaws},
        "experiments": {"search": {"task": {"name": "search"}, "train_on": ["facts"],
                                   "arms": {"GiGPO": {"algorithm": "GiGPO"}}}}}))
    return load_scale("tiny", folder).run("search", "GiGPO", 0).algorithm


def said(token: int, saw: str) -> Turn:
    return Turn("", (token,), (-1.0,), TurnStop.TAG, Observation(saw), (9,) if saw else ())


@pytest.mark.numeric
@pytest.mark.usefixtures("registered")
def test_an_estimator_with_its_own_keys_goes_from_yaml_to_token_credit(tmp_path: Path) -> None:
    # Both episodes see "Kenya" before their second turn: there, and at the start, their turns are compared.
    group = Group.of_chains([transcript(said(3, "Kenya"), said(4, "")), transcript(said(5, "Kenya"), said(6, ""))])
    rewards = [Given((0.0, 0.0), 1.0), Given((0.5, 0.0), 0.0)]
    for weight, first_episode in ((0.0, [1, 1]), (1.0, [2, 2]), (0.5, [1.5, 1.5])):
        estimator = make_estimator(algorithm_of(tmp_path, step_weight=weight), TrainingConfig())
        credit = estimator.credit([group], [rewards], rows_of([group]), old_logprob_N=torch.zeros(4))
        shrunk = 2 * EPSILON / 0.25  # of two z-scores, by the EPSILON beside the standard deviation of (1, 0.5)
        assert credit.advantage_N[:2].tolist() == pytest.approx(first_episode, abs=shrunk + bound(1, 2.0))
        assert_close(credit.weight_N.sum(), 1.0, terms=4)


@pytest.mark.usefixtures("registered")
def test_a_wrong_key_of_an_estimator_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key step_wieght; did you mean 'step_weight'"):
        make_estimator(algorithm_of(tmp_path, step_wieght=1.0), TrainingConfig())


def test_rloo_was_added_by_its_file_a_registry_line_and_yaml() -> None:
    """No other module of the package names it; the credit bench uses its formula for the true gradients."""
    package = ROOT / "src" / "turncredit"
    naming = [path.relative_to(package).as_posix() for path in package.rglob("*.py")
              if "rloo" in path.read_text(encoding="utf-8").lower()]
    assert set(naming) <= {"credit/rloo.py", "credit/registry.py", "credit/__init__.py", "credit_bench/truth.py"}
