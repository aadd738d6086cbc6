"""Bad input through the command itself: one message (what, where, value, remedy), an exit code, nothing half-written.

Mistyped keys, scales, experiments and arms are in test_cli.py and test_config.py, literal model output
in test_format.py. Here a small run lies in a folder whose name holds a space.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.small_run import ALGORITHMS, TASK, TRAINING, make_world, served, untimed
from turncredit.cli.main import app
from turncredit.config.retriever import RetrieverConfig
from turncredit.files import sha256
from turncredit.retrieval.client import RetrieverClient
from turncredit.retrieval.lifecycle import retriever
from turncredit.tasks.search import services
from turncredit.tasks.search.demonstrations import FLAWS
from turncredit.training.lock import run_lock

SCALE: dict[str, Any] = {
    "seeds": 1, "world": {"in_domain": ["facts"], "out_of_domain": []},
    "policy": {"vocabulary": 320, "hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "max_positions": 256},
    "warm_start": {"flaws": dict.fromkeys(FLAWS, 0.5)},
    "experiments": {"search": {
        "task": TASK.model_dump(mode="json"), "train_on": ["facts"],
        "training": TRAINING.model_dump(mode="json") | {"steps": 3},
        "arms": {name: {"algorithm": name} for name in ALGORITHMS}}}}
RUN = Path("test", "search", "chains", "base-0", "seed-0")
POLICY = "policy/test/base-0/initial/search"
CHAINS = ("--experiment", "search", "--arm", "chains")


class Clone:
    """A clone with a small world, and the ``turncredit`` command in this process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results, self.checkpoints = root / "results" / RUN, root / "checkpoints" / RUN

    def configure(self, **changes: object) -> None:
        """Write config/test.yaml; ``training__steps=2`` changes a value of the experiment."""
        content: dict[str, Any] = json.loads(json.dumps(SCALE))
        for name, value in changes.items():
            section, _, key = name.partition("__")
            content["experiments"]["search"][section][key] = value
        (self.root / "config" / "test.yaml").write_text(yaml.safe_dump(content))

    def call(self, *arguments: str, search: Callable[..., Any] | None = None) -> Result:
        """The command, with the fake retriever unless another is given."""
        with served(), pytest.MonkeyPatch.context() as patch:
            if search is not None:
                patch.setattr(services, "retriever", search)
            return CliRunner().invoke(app, [*arguments, "--scale", "test", "--root", str(self.root)])

    def refuses(self, *arguments: str, code: int = 2, says: tuple[str, ...] = (),
                search: Callable[..., Any] | None = None) -> str:
        """The command's message; what had a name under the clone is untouched, but for a run's own folder."""
        before = self.named_files()
        done = self.call(*arguments, search=search)
        assert done.exit_code == code, (done.output, done.exception)
        assert isinstance(done.exception, SystemExit), done.exception  # no traceback
        assert "turncredit: " in done.stderr
        message = done.stderr[done.stderr.index("turncredit: "):]
        assert "\n  -> " in message, message
        for words in says:
            assert words in message
        assert self.named_files() == before
        assert not list(self.root.rglob(".saving-*"))
        return message

    def named_files(self) -> dict[str, str]:
        """Everything but live files of runs in progress, with digests."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {name: sha256(path) for path in files
                if not (name := str(path.relative_to(self.root))).startswith("checkpoints")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("worlds") / "a world"
    make_world(root)
    (root / "config").mkdir()
    algorithms = {name: algorithm.model_dump(mode="json") for name, algorithm in ALGORITHMS.items()}
    (root / "config" / "algorithms.yaml").write_text(yaml.safe_dump({"algorithms": algorithms}))
    return root


@pytest.fixture
def clone(world: Path, tmp_path: Path) -> Clone:
    shutil.copytree(world, tmp_path / "a clone")
    made = Clone(tmp_path / "a clone")
    made.configure()
    return made


@pytest.fixture(scope="module")
def played(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with one trained and evaluated run."""
    root = tmp_path_factory.mktemp("played") / "a clone"
    shutil.copytree(world, root)
    made = Clone(root)
    made.configure()
    for command in ("train", "evaluate"):
        done = made.call(command, *CHAINS)
        assert done.exit_code == 0, (done.output, done.exception)
    return root


@pytest.fixture
def finished(played: Path, tmp_path: Path) -> Clone:
    shutil.copytree(played, tmp_path / "a clone")
    return Clone(tmp_path / "a clone")


# --- data -------------------------------------------------------------------------------------------------------------

REMAKE = "make it again: snakemake --cores 2 --force data/test/world.json"
QUESTIONS = "data/test/questions/facts.train.jsonl"


@pytest.mark.parametrize(("file", "change", "says"), [
    (QUESTIONS, Path.unlink, ("facts.train.jsonl: No such file", REMAKE)),
    (QUESTIONS, lambda path: path.write_text(path.read_text() + " "), ("differs from the sha256", REMAKE)),
    ("data/test/questions/facts.test.jsonl", lambda path: path.write_text(""), ("facts.test.jsonl", "differs")),
    ("data/test/world.json", Path.unlink, ("world.json: cannot be read", REMAKE)),
    ("data/test/world.json", lambda path: path.write_text("{}"), ("world.json: cannot be read", "'sha256'")),
    ("data/test/world.json", lambda path: path.write_text("[]"), ("world.json: cannot be read",)),
    (f"{POLICY}/model.safetensors", Path.unlink, (POLICY, "snakemake")),
    (f"{POLICY}/model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-9]),
     (f"{POLICY}: the policy cannot be loaded", "make it again")),
    (f"{POLICY}/tokenizer.json", lambda path: path.write_text("{"),
     (f"{POLICY}: no readable tokenizer",)),
    (f"{POLICY}/config.json", lambda path: path.write_text("{}"), (POLICY,))])
def test_a_missing_or_altered_file_is_refused_before_any_step(clone: Clone, file: str, change: Callable[[Path], Any],
                                                              says: tuple[str, ...]) -> None:
    change(clone.root / file)
    clone.refuses("train", *CHAINS, says=says)
    assert not clone.results.exists()
    assert not list(clone.checkpoints.glob("step-*"))


def test_an_altered_corpus_is_not_indexed(clone: Clone) -> None:
    corpus = clone.root / "data" / "test" / "corpus.jsonl"
    corpus.write_text('{"id": "0", "contents": "\\"Kenya\\"\\nAltered."}\n')
    clone.refuses("index", says=("corpus.jsonl: differs from the sha256 in world.json", REMAKE))
    corpus.unlink()
    clone.refuses("index", says=("corpus.jsonl: No such file",))


@pytest.mark.parametrize("command", ["tokenizer", "base-policy"])
def test_policies_are_not_made_of_an_altered_world(clone: Clone, command: str) -> None:
    (clone.root / QUESTIONS).write_text("")
    (clone.root / "data" / "test" / "corpus.jsonl").write_text('{"id": "0", "contents": "x"}\n')
    shutil.copytree(clone.root / POLICY, clone.root / "policy/test/tokenizer")
    clone.refuses(command, says=("differs from the sha256", REMAKE))


def test_an_evaluation_without_a_trained_policy_says_so(clone: Clone) -> None:
    clone.refuses("evaluate", *CHAINS, says=(f"{clone.checkpoints / 'final'}", "snakemake"))


def test_a_damaged_manifest_beside_an_evaluation_is_named(finished: Clone) -> None:
    (finished.results / "manifest.json").write_text("{")
    finished.refuses("evaluate", *CHAINS, says=("manifest.json: cannot be read", "train the run again"))


# --- checkpoints ------------------------------------------------------------------------------------------------------

def test_a_truncated_checkpoint_falls_back_and_only_truncated_ones_are_refused(finished: Clone) -> None:
    rows = untimed(finished.results / "metrics.csv")
    shutil.rmtree(finished.results)
    steps = sorted(finished.checkpoints.glob("step-*"))
    (steps[-1] / "optimizers.pt").write_bytes(b"")
    assert finished.call("train", *CHAINS).exit_code == 0
    assert untimed(finished.results / "metrics.csv") == rows
    for path in finished.checkpoints.glob("step-*"):
        (path / "contents.json").write_text("{")
    finished.refuses("train", *CHAINS, says=(str(finished.checkpoints), "can be read", "remove the folder"))


# --- results ----------------------------------------------------------------------------------------------------------

def without_column(cells: pd.DataFrame) -> pd.DataFrame:
    return cells.drop(columns="answer_correct")


def with_nan(cells: pd.DataFrame) -> pd.DataFrame:
    cells.loc[1, "answer_correct"] = "nan"
    return cells


def with_row_twice(cells: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([cells, cells.iloc[[1]]])


@pytest.mark.parametrize("file", ["metrics.csv", "evaluation.csv"])
@pytest.mark.parametrize(("change", "says"), [
    (without_column, ("column 'answer_correct' is missing",)), (with_nan, ("line 3, column 'answer_correct'", "nan")),
    (with_row_twice, ("repeats an earlier one",))])
def test_a_faulty_results_file_is_named_and_not_collected(finished: Clone, file: str, says: tuple[str, ...],
                                                          change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = finished.results / file
    change(pd.read_csv(path, dtype=str, keep_default_na=False)).to_csv(path, index=False)
    finished.refuses("collect", "search", str(finished.results), says=(str(path), *says, "train it again"))


def test_a_whole_run_is_collected_and_drawn_in_a_folder_with_a_space(finished: Clone) -> None:
    done = finished.call("collect", "search", str(finished.results))
    assert done.exit_code == 0, (done.output, done.exception)
    folder = finished.root / "results" / "test" / "search"
    assert {"metrics.csv", "evaluation.csv.gz", "manifests.json"} <= {path.name for path in folder.iterdir()}
    shutil.copytree(Path(__file__).parents[2] / "paper_tables" / "reported",
                    finished.root / "paper_tables" / "reported")
    drawn = finished.call("figure", "fig3_training_dynamics", str(folder))
    assert drawn.exit_code == 0, (drawn.output, drawn.exception)


# --- the retriever ----------------------------------------------------------------------------------------------------

@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_retriever_that_is_down_is_an_error_never_no_results(clone: Clone, free_port: int) -> None:
    @contextmanager
    def down(index: Path, config: RetrieverConfig) -> Iterator[RetrieverClient]:
        yield RetrieverClient(f"http://127.0.0.1:{free_port}", timeout_s=5, retries=1, index_sha256=None)

    clone.refuses("train", *CHAINS, code=3, search=down, says=(
        f"http://127.0.0.1:{free_port}/retrieve: no answer: ConnectError", "run the same command again"))
    assert not clone.results.exists()
    assert clone.call("train", *CHAINS).exit_code == 0  # and it does go on once there is one


def test_an_index_that_is_not_there_is_named(clone: Clone) -> None:
    clone.refuses("train", *CHAINS, search=retriever,
                  says=("index.json: not an index manifest", "build it again: snakemake --cores 2 index --config "
                        "scale=test --forcerun index/test/index.json"))
    (clone.root / "index" / "test" / "index.json").unlink()
    clone.refuses("train", *CHAINS, search=retriever,
                  says=("index.json: no finished index here", "build it: snakemake --cores 2 "))


def test_a_taken_port_is_named(clone: Clone) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        clone.refuses("serve", "--port", str(port), code=3,
                      says=(f"127.0.0.1:{port}: cannot listen: Address already in use", "0 for a free one"))


# --- the disk ---------------------------------------------------------------------------------------------------------

@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[None]:
    """A file system of a few kilobytes at ``place``."""
    place.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)],
                             capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # a failed writer may still hold its file


@pytest.mark.parametrize("kilobytes", [4, 40, 150, 500])  # too little for the manifest, weights, optimiser, all of two
def test_a_full_disk_is_named_and_no_half_of_a_checkpoint_is_left(clone: Clone, kilobytes: int) -> None:
    with small_disk(clone.checkpoints, kilobytes):
        message = clone.refuses("train", *CHAINS, says=("free some space",))
        assert str(clone.checkpoints) in message
        assert not clone.results.exists()
        left = {path.name for path in clone.checkpoints.iterdir() if not path.name.startswith("episodes-")}
        assert left - {"lock.json", "manifest.json", "metrics.csv"} == ({"step-1"} if kilobytes == 500 else set())


def test_a_full_disk_that_holds_no_lock_is_named_and_with_space_the_run_goes_on(clone: Clone) -> None:
    with small_disk(clone.checkpoints, 4):
        (clone.checkpoints / "filler").write_bytes(b"x" * 4096)
        clone.refuses("train", *CHAINS, says=("lock.json: cannot be written: No space left on device",))
        (clone.checkpoints / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(clone.checkpoints)], check=True)
        done = clone.call("train", *CHAINS)
        assert done.exit_code == 0, (done.output, done.exception)


def test_a_full_disk_for_results_leaves_no_result(clone: Clone) -> None:
    with small_disk(clone.results, 4):
        clone.call("train", *CHAINS)
        assert "manifest.json" not in {path.name for path in clone.results.iterdir()}  # so it does not look finished
    assert clone.call("train", *CHAINS).exit_code == 0
    assert {path.name for path in clone.results.iterdir()} == {"episodes.jsonl", "metrics.csv", "manifest.json"}


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tests.unit.test_bad_input import CHAINS, Clone
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
done = Clone(Path(sys.argv[1])).call("train", *CHAINS)
print(done.exit_code, done.stderr)
"""


def test_a_file_that_may_not_grow_is_named(clone: Clone) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(clone.root)], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parents[2])
    assert done.stdout.startswith("2 "), done.stdout + done.stderr
    assert "checkpoint 1 cannot be saved: File too large\n  -> free some space" in done.stdout
    assert not clone.results.exists()
    assert not list(clone.checkpoints.glob("step-*"))


def test_a_place_that_cannot_hold_a_folder_is_named(clone: Clone) -> None:
    (clone.root / "checkpoints").write_text("a file")
    clone.refuses("train", *CHAINS, says=("checkpoints",))


# --- the run ----------------------------------------------------------------------------------------------------------

def test_a_prompt_that_does_not_fit_names_the_item_and_the_key(clone: Clone) -> None:
    clone.configure(task__max_context_tokens=24)
    clone.refuses("train", *CHAINS, says=("item facts-validation-0", "task.max_context_tokens is 24", "raise"))


def test_an_episode_that_outgrows_its_context_is_counted_not_cut(clone: Clone) -> None:
    clone.configure(task__max_context_tokens=64)
    assert clone.call("train", *CHAINS).exit_code == 0
    rows = pd.read_csv(clone.results / "metrics.csv")
    assert rows["stop_context_overflow"].max() > 0
    assert clone.call("evaluate", *CHAINS).exit_code == 0


def test_a_run_that_diverges_ends_with_its_own_code(clone: Clone) -> None:
    clone.configure(training__learning_rate=1e30)
    clone.refuses("train", *CHAINS, code=4, says=("not finite", "a lower training.learning_rate"))
    assert not clone.results.exists()


def test_a_second_writer_is_told_who_the_first_is(clone: Clone) -> None:
    with run_lock(clone.checkpoints):
        clone.refuses("train", *CHAINS, code=5, says=(str(clone.checkpoints), '"pid": ', "wait for that process"))
    assert clone.call("train", *CHAINS).exit_code == 0
