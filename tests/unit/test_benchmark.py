"""The benchmark counts the operations that torch counts, and compares episodes of the shapes it names."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from bench.__main__ import app
from bench.cost import matmul_peak, time_by_kind, update_flops
from bench.generate import compare_with_generate
from bench.results import Measured, save, tables
from bench.steps import arm_steps
from bench.trees import CHAINS, LEAVES, TREE, SearchingTask, shapes
from tests import small_run
from tests.models import tiny_policy
from turncredit.credit.rows import rows_of
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import load_policy, token_logprobs
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.search.environment import SERVICE
from turncredit.tasks.search.protocol import RULES
from turncredit.tasks.search.services import SearchService
from turncredit.training.run import make_runner
from turncredit.training.run_folder import RunPaths


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("clone")
    small_run.make_world(root)
    return root


def test_the_formula_is_what_torch_counts() -> None:
    model = tiny_policy()
    ids_B_T = torch.arange(3, 27).reshape(2, 12)
    mask_B_T = torch.zeros_like(ids_B_T)
    mask_B_T[:, 7:] = 1
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it knows no fused ones of the CPU
        token_logprobs(model, ids_B_T, torch.ones_like(ids_B_T), mask_B_T, 1.0)[0].sum().backward()
    assert update_flops(model, [12, 12], 10) == counter.get_total_flops()


def test_padding_costs_nothing_and_a_critic_is_a_second_body() -> None:
    model = tiny_policy()
    assert update_flops(model, [5, 9], 4) == update_flops(model, [5], 1) + update_flops(model, [9], 3)
    body = update_flops(model, [5, 9], 0)
    assert update_flops(model, [5, 9], 4, critic=True) == update_flops(model, [5, 9], 4) + body


def test_every_operation_is_of_one_kind() -> None:
    model, ids_B_T = tiny_policy(), torch.arange(3, 27).reshape(2, 12)
    optimizer = torch.optim.AdamW(model.parameters())

    def update() -> None:
        model(ids_B_T).logits.log_softmax(-1).sum().backward()
        optimizer.step()

    shares = time_by_kind(update, vocabulary=30)
    assert sum(shares.values()) == pytest.approx(1)
    assert {"optimiser", "attention", "matrix products, body", "matrix products, output head"} < set(shares)


def test_the_written_out_leaves_are_the_trees_leaves(root: Path) -> None:
    config = small_run.config("tree")
    paths = RunPaths.under(root, config)
    codec = Codec.load(paths.policy)
    services = {SERVICE: SearchService(small_run.FakeRetriever(), small_run.TASK.top_k)}
    runner = make_runner(config, HFEngine(load_policy(paths.policy), codec), services, codec)
    runner = replace(runner, task=SearchingTask(small_run.TASK, RULES))
    groups = {name: shape.play(runner, 0.9) for name, shape in shapes(small_run.questions("train", 12)).items()}
    assert [group.transcripts for group in groups[TREE]] == [group.transcripts for group in groups[LEAVES]]
    turns = {name: sum(len(group.turns) for group in played) for name, played in groups.items()}
    assert turns == {CHAINS: 108, TREE: 108, LEAVES: 144}
    assert [len(rows_of(played)) for played in groups.values()] == [36, 48, 48]


def test_both_engines_sample_the_same_turns(root: Path) -> None:
    policy = RunPaths.under(root, small_run.config("chains")).policy
    codec = Codec.load(policy)
    contexts = [codec.encode_prompt([{"role": "user", "content": q.question}])
                for q in small_run.questions("train", 6)] + [codec.encode_observation("gold" * 9)]
    measured = compare_with_generate(load_policy(policy), codec, contexts, 12)
    assert {m.value for m in measured if m.measure == "% of turns equal"} == {100.0}


@pytest.mark.parametrize("arm", list(small_run.ALGORITHMS))
def test_an_arm_is_measured_away_from_the_results(root: Path, tmp_path: Path, arm: str) -> None:
    config = small_run.config(arm)
    paths = replace(RunPaths.under(root, config), checkpoints=tmp_path)
    before = sorted(root.rglob("*"))
    services = {SERVICE: SearchService(small_run.FakeRetriever(), small_run.TASK.top_k)}
    measured = arm_steps(config, paths, services, steps=2, peak=matmul_peak("cpu", 64))
    value = {m.measure: m.value for m in measured}
    assert value["step s"] == pytest.approx(value["rollout s"] + value["scoring s"] + value["update s"], rel=0.5)
    assert all(number > 0 for number in value.values())
    assert sorted(root.rglob("*")) == before


def test_tables_and_file_hold_every_number(tmp_path: Path) -> None:
    measured = [Measured("a", "x", "s", 1234.5), Measured("a", "y", "s", 0.5), Measured("b", "x", "GB", 2.0)]
    save(measured, tmp_path / "new" / "bench.csv")
    with (tmp_path / "new" / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Measured(r["part"], r["subject"], r["measure"], float(r["value"])) for r in rows] == measured
    drawn = [table for table in tables(measured) if isinstance(table, Table)]
    assert [(table.title, table.row_count) for table in drawn] == [("a", 2), ("b", 1)]
    assert list(drawn[0].columns[1].cells) == ["1,234", "0.5"]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").symlink_to(Path(__file__).parents[2] / "config")
    found = CliRunner().invoke(app, ["--root", str(tmp_path), "--scale", "smoke"])
    assert found.exit_code == 2
    assert str(tmp_path / "data" / "smoke") in found.output
    assert "snakemake" in found.output
    assert not (tmp_path / "benchmarks").exists()
