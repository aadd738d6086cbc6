"""A base policy is the first warm start whose measured difficulty passes the gates; every attempt is listed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from turncredit.config.data import Limits
from turncredit.config.load import Scale, load_scale
from turncredit.errors import ConfigError, DataError
from turncredit.miniature import base_policies
from turncredit.miniature.base_policies import make_base_policy
from turncredit.policy.attempts import Attempt, read_attempts

ROOT = Path(__file__).parents[2]
GATES = {"initial_search_sampled_em": Limits(min=0.02, max=0.05), "expert_search_sampled_em": Limits(min=0.7)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies that hold their warm-start seed and nothing else."""
    def seed_file(scale: Scale, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "seed").write_text(str(scale.require_warm_start().seed))

    monkeypatch.setattr(base_policies, "make_expert", lambda scale, *rest: seed_file(scale, rest[-1]))
    monkeypatch.setattr(base_policies, "make_initial", lambda scale, *rest: seed_file(scale, rest[-1]))


def scale(**warm_start: Any) -> Scale:
    smoke = load_scale("smoke", ROOT / "config")
    start = smoke.require_warm_start().model_copy(update={"attempts": 1, "gates": {}} | warm_start)
    return smoke.model_copy(update={"warm_start": start})


def make(found: Scale, base: int, output: Path, measured: Mapping[int, tuple[float, float]]) -> None:
    """Make a base policy; ``measured`` holds the numbers of each warm-start seed, in the order of the gates."""
    def measure(seeded: Scale, folder: Path, data: Path, index: Path) -> dict[str, float]:
        seed = seeded.require_warm_start().seed
        assert (folder / "initial" / "search" / "seed").read_text() == str(seed)
        return dict(zip(GATES, measured[seed], strict=True))

    make_base_policy(found, base, Path(), Path(), Path(), output, measure)


def test_the_first_attempt_that_passes_every_gate_is_kept_and_all_are_listed(tmp_path: Path) -> None:
    output = tmp_path / "base-2"
    make(scale(seed=3, attempts=5, gates=GATES), 2, output,
         {23: (0.2, 0.8), 24: (0.01, 0.6), 25: (0.03, 0.8), 26: (0.03, 0.9)})
    assert (output / "expert" / "seed").read_text() == "25"
    assert {path.name: (path / "seed").read_text() for path in (output / "initial").iterdir()} == {
        "search": "25", "tool_search": "25"}
    first, second, taken = read_attempts(output)
    assert first == Attempt(23, dict(zip(GATES, (0.2, 0.8), strict=True)),
                            "initial_search_sampled_em = 0.200 is above 0.05")
    assert second.failed == ("initial_search_sampled_em = 0.010 is below 0.02; "
                             "expert_search_sampled_em = 0.600 is below 0.7")
    assert (taken.warm_start_seed, taken.failed) == (25, "")


def test_if_no_attempt_passes_the_error_lists_the_numbers_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 2 warm starts") as error:
        make(scale(attempts=2, gates=GATES), 1, tmp_path / "base-1", {10: (0.2, 0.8), 11: (float("nan"), 0.8)})
    for words in ("seed 10: failed: initial_search_sampled_em = 0.200 is above 0.05", "expert_search_sampled_em 0.800",
                  "seed 11: failed: initial_search_sampled_em = nan is below 0.02"):
        assert words in str(error.value)
    assert not list(tmp_path.iterdir())


def test_without_gates_the_first_attempt_is_taken_unmeasured(tmp_path: Path) -> None:
    make(scale(), 0, tmp_path / "base-0", {})
    assert read_attempts(tmp_path / "base-0") == [Attempt(0, {}, "")]


def test_a_gate_on_something_that_is_not_measured_is_refused(tmp_path: Path) -> None:
    gates = {"initial_serch_sampled_em": Limits(max=1.0)}
    with pytest.raises(ConfigError, match="did you mean 'initial_search_sampled_em'"):
        make(scale(gates=gates), 0, tmp_path / "base-0", {0: (0.0, 0.0)})


def test_no_two_base_policies_share_a_warm_start_seed() -> None:
    start = scale(attempts=10, seed=4).require_warm_start()
    seeds = [start.seed_of(base, attempt) for base in range(5) for attempt in range(start.attempts)]
    assert len({*seeds}) == len(seeds)
    assert seeds[0] == 4


@pytest.mark.parametrize(("limits", "says"), [({}, "min and max are missing"), ({"min": 0.5, "max": 0.2}, "above max")])
def test_limits_that_allow_nothing_are_refused(limits: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Limits.model_validate(limits)
