"""Names that users choose: what the configuration accepts, the workflow's wildcards match."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from turncredit.config.load import Scale, load_scale
from turncredit.config.names import ARM, EXPERIMENT, TAKEN
from turncredit.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "config"
SMOKE: dict[str, Any] = load_scale("smoke", CONFIG).model_dump(mode="json", exclude_unset=True)
NAMES = st.one_of(st.text(max_size=6), st.sampled_from(["..", "../../x", "-rf", "a/b", "MT-GRPO+kl", "search2", "é"]))


def renamed(experiment: str, arm: str) -> Scale:
    """Scale smoke with one experiment and one arm, under other names."""
    settings = SMOKE["experiments"]["search"]
    only = settings | {"arms": {arm: {"algorithm": "MT-PPO"}}}
    return Scale.model_validate(SMOKE | {"experiments": {experiment: only}, "credit_bench": {}, "checkpoints": {}})


def is_accepted(experiment: str, arm: str) -> bool:
    try:
        renamed(experiment, arm)
    except ValueError:
        return False
    return True


@given(NAMES)
def test_the_configuration_accepts_what_the_workflow_matches(name: str) -> None:
    assert is_accepted("search", name) == (re.fullmatch(ARM, name) is not None and name not in TAKEN["arm"])
    assert is_accepted(name, "PPO") == (re.fullmatch(EXPERIMENT, name) is not None and name not in TAKEN["experiment"])


@pytest.mark.parametrize(("experiment", "arm", "says"), [
    ("search", "../../x", "'../../x' is no name for this arm: use one of A-Za-z0-9, then any of A-Za-z0-9._+-"),
    ("search", "-rf", "'-rf' is no name"), ("search", "", "'' is no name"),
    ("untrained", "PPO", "'untrained' is a folder that the workflow makes")])
def test_a_refused_name_is_told_with_its_place(tmp_path: Path, experiment: str, arm: str, says: str) -> None:
    settings = yaml.safe_load((CONFIG / "smoke.yaml").read_text())
    settings["experiments"] = {experiment: settings["experiments"]["search"] | {"arms": {arm: {"algorithm": "MT-PPO"}}}}
    settings.pop("credit_bench", None)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "algorithms.yaml").write_text((CONFIG / "algorithms.yaml").read_text())
    with pytest.raises(ConfigError, match=re.escape(says)) as error:
        load_scale("own", tmp_path)
    assert "experiments." in str(error.value)


def test_names_with_digits_and_signs_are_accepted() -> None:
    assert is_accepted("search2", "MT-GRPO+kl")
