"""The command line starts quickly, and reports an error as one message and an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.workflow.conftest import ROOT
from turncredit.cli import main as cli
from turncredit.config.load import load_scale, scale_names
from turncredit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    Interrupted,
    NonFiniteError,
    RetrieverError,
    RunLockedError,
    TurncreditError,
)

COMMANDS = sorted(get_command(cli.app).commands)  # type: ignore[attr-defined]


def test_starting_loads_nothing_heavy() -> None:
    heavy = "torch transformers pandas matplotlib scipy jnius snakemake"
    code = f"import sys, turncredit.cli.main; print([m for m in '{heavy}'.split() if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert "--scale" in result.output or command == "show"  # a run names its scale


@pytest.mark.parametrize(("error", "code"), [
    (ConfigError, 2), (DataError, 2), (CheckpointError, 2), (RetrieverError, 3), (NonFiniteError, 4),
    (RunLockedError, 5), (Interrupted, 75)])
def test_an_error_is_a_message_and_its_own_code(monkeypatch: pytest.MonkeyPatch, error: type[TurncreditError],
                                                code: int) -> None:
    def fail(name: str, root: Path) -> None:
        raise error("file.yaml: key = 3 is wrong", "use 2")

    monkeypatch.setattr(cli, "scale_at", fail)
    result = CliRunner().invoke(cli.app, ["check-config", "--scale", "mini"])
    assert result.exit_code == code
    assert result.stderr == "turncredit: file.yaml: key = 3 is wrong\n  -> use 2\n"
    assert result.stdout == ""


@pytest.mark.parametrize("scale", scale_names(ROOT / "config"))
def test_every_shipped_configuration_parses(scale: str) -> None:
    result = CliRunner().invoke(cli.app, ["check-config", "--scale", scale, "--root", str(ROOT)])
    assert result.exit_code == 0
    assert f"{scale}/search: base policies: " in result.stdout


def config_with(tmp_path: Path, old: str, new: str) -> Path:
    """A root whose mini.yaml has one word replaced."""
    (tmp_path / "config").mkdir()
    for path in (ROOT / "config").glob("*.yaml"):
        text = path.read_text()
        assert path.stem != "mini" or old in text
        (tmp_path / "config" / path.name).write_text(text.replace(old, new) if path.stem == "mini" else text)
    return tmp_path


@pytest.mark.parametrize(("old", "new", "says"), [
    ("steps:", "stepz:", "did you mean 'steps'?"),
    ("seeds: 4", "seeds: 0", "seeds = 0: Input should be greater than or equal to 1"),
    ("same_as: search/MT-PPO", "same_as: search/MT-PPX", "did you mean 'search/MT-PPO'?"),
    ("same_as: search/MT-PPO", "same_as: search/GRPO-OR", "search/GRPO-OR differs in its settings"),
    ("{algorithm: GRPO-MR}", "{algorithm: GRPO-RM}", "did you mean 'GRPO-"),
    ("seeds: 4", "seeds: [", "mini.yaml"),
])
def test_a_faulty_configuration_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    root = config_with(tmp_path, old, new)
    result = CliRunner().invoke(cli.app, ["check-config", "--scale", "mini", "--root", str(root)])
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize(("arguments", "says"), [
    (["figure", "fig3_training_dynamics"], "results/mini/search, or"),
    (["figure", "fig3_training_dynamics"], "snakemake --cores 2 figures/mini/fig3_training_dynamics.pdf"),
    (["figure", "fig3_training_dynamics", "results/mini/two_turn"], "reads the runs of search; pass their folders"),
    (["table", "table2_answer"], "reads the runs of search, untrained; pass their folders"),
    (["audit"], "snakemake --cores 2 audit --config scale=mini"),
    (["readme"], "snakemake --cores 2 readme --config scale=mini"),
    (["readme", "results/mini/untrained", "results/mini/search", "results/mini/two_turn"],
     "of ablation, factorial, readings; pass"),
])
def test_a_page_of_no_runs_is_not_written_over_a_good_one(tmp_path: Path, arguments: list[str], says: str) -> None:
    root = config_with(tmp_path, "seeds: 4", "seeds: 4")
    (root / "README.md").write_text("results\n")
    result = CliRunner().invoke(cli.app, [*arguments, "--root", str(root)])
    assert result.exit_code == 2
    assert says in result.stderr
    assert {path.name for path in root.iterdir()} == {"config", "README.md"}
    assert (root / "README.md").read_text() == "results\n"


def test_a_table_that_reads_no_runs_wants_no_folder(tmp_path: Path) -> None:
    root = config_with(tmp_path, "seeds: 4", "seeds: 4")
    (root / "paper_tables").mkdir()
    (root / "paper_tables" / "reported").symlink_to(ROOT / "paper_tables" / "reported")
    assert CliRunner().invoke(cli.app, ["table", "table1_granularity", "--root", str(root)]).exit_code == 0
    assert (root / "paper_tables" / "mini" / "table1_granularity.csv").exists()


def test_a_scale_that_fetches_nothing_says_so() -> None:
    result = CliRunner().invoke(cli.app, ["fetch", "--scale", "mini", "--root", str(ROOT)])
    assert (result.exit_code, result.stdout) == (0, "scale mini downloads nothing: its data are generated\n")


@pytest.mark.parametrize(("arguments", "says"), [
    (["train", "--experiment", "serach", "--arm", "MT-PPO"], "did you mean 'search'?"),
    (["train", "--experiment", "search", "--arm", "MT-PP"], "did you mean 'MT-PPO'?"),
    (["train", "--experiment", "search", "--arm", "MT-PPO", "--seed", "-1"], "seed -1 is negative"),
    (["train", "--experiment", "search", "--arm", "MT-PPO", "--scale", "mimi"], "did you mean 'mini'?"),
    (["base-policy", "--base", "-1"], "no base policy -1"),
    (["headline", "--scale", "smoke"], "paper_tables/smoke/headline.txt"),
    (["figure", "fig3_training"], "did you mean 'fig3_training_dynamics'?"),
    (["table", "table2_answers"], "did you mean 'table2_answer'?"),
])
def test_a_name_that_does_not_exist_is_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    root = config_with(tmp_path, "seeds: 4", "seeds: 4")
    (root / "paper_tables").mkdir()
    (root / "paper_tables" / "reported").symlink_to(ROOT / "paper_tables" / "reported")
    result = CliRunner().invoke(cli.app, [*arguments, "--root", str(root)])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not (root / "results").exists()


def test_an_untrained_policy_is_evaluated_without_the_overrides_of_an_arm() -> None:
    scale = load_scale("mini", ROOT / "config")
    experiment = scale.experiments["search"]
    name, arm = next(iter(experiment.arms.items()))
    changed = arm.model_copy(update={"overrides": arm.overrides.model_copy(update={"task": {"max_turns": 2}})})
    other = scale.model_copy(update={"experiments": scale.experiments | {
        "search": experiment.model_copy(update={"arms": {name: changed}})}})
    assert other.run("search", name, 0).task.max_turns == 2
    assert other.without_overrides("search").task == experiment.task
    assert other.without_overrides("search").rewards == scale.rewards["search"]
    assert scale.without_overrides("search") == scale.run("search", name, 0)


def test_a_policy_of_others_is_evaluated_under_the_reading_of_its_scale() -> None:
    scale = load_scale("paper", ROOT / "config")
    played, trained = scale.without_overrides("search"), scale.run("search", "MT-PPO", 0)
    assert played.task.model_dump()["action"] == "first_pair"
    assert (played.task, played.rewards) == (trained.task, trained.rewards)
