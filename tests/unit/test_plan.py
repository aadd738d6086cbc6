"""Plans: numbers that can be made by hand, and refusals that name the key to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.utils import calculate_maximum_sizes
from rich.table import Table
from typer.testing import CliRunner

from turncredit.cli import main as cli
from turncredit.config.data import PolicyConfig
from turncredit.config.load import RunConfig, Scale, load_scale
from turncredit.errors import ConfigError
from turncredit.planning.activations import meta_model, update_peak
from turncredit.planning.catalogue import Assumptions, Shape, load_catalogue, shape_of
from turncredit.planning.memory import (
    CRITIC,
    ENGINE,
    GATHERED,
    GIB,
    GRADIENTS,
    MOMENTS,
    OPTIMIZER,
    REFERENCE,
    WEIGHTS,
    Memory,
    memory,
)
from turncredit.planning.plan import make_plan
from turncredit.planning.show import tables, to_csv
from turncredit.planning.workload import Speed, decode_seconds, forward_flops, hours, workload

ROOT = Path(__file__).parents[2]
CATALOGUE = load_catalogue(ROOT / "config")
ASSUMED = Assumptions(computing_share=0.5, decoding_share=0.5, host_gb_s=10, disk_gb_s=1, reserve_gib=0,
                      prompt_tokens=100, turns=3, turn_tokens=50, observation_share=0.5)
TINY = {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 1000, "max_position_embeddings": 512,
        "tie_word_embeddings": True}
# A model of round numbers: 10 layers of 1 M weights, 2 M outside of them, one of those the head.
SHAPE = Shape(TINY, "the test", parameters=12_000_000, layer=1_000_000, outside=2_000_000, head=1_000_000, layers=10,
              width=100, cached=200)


def run_of(arm: str = "MT-PPO", **changes: dict[str, Any]) -> RunConfig:
    run = load_scale("paper", ROOT / "config").run("search", arm, 0)
    return run.model_copy(update={key: getattr(run, key).model_copy(update=parts) for key, parts in changes.items()})


# --- shapes -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("name", "weights"), [
    ("Qwen/Qwen2.5-7B", 7_615_616_512), ("Qwen/Qwen2.5-1.5B", 1_543_714_304), ("Qwen/Qwen2.5-0.5B", 494_032_768)])
def test_the_models_have_as_many_weights_as_their_publisher_says(name: str, weights: int) -> None:
    settings = CATALOGUE.models[name]
    assert sum(p.numel() for p in meta_model(settings).parameters()) == weights
    estimated, _ = calculate_maximum_sizes(meta_model(settings))  # accelerate's, with some buffers
    assert 4 * weights <= estimated < 4 * weights + 1024


def test_a_shape_is_counted_by_hand() -> None:
    made = PolicyConfig(hidden_size=64, layers=3, heads=2, kv_heads=1, intermediate_size=96)
    layer = 64 * 64 + 64 + 2 * (64 * 32 + 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64  # q, k and v, o, MLP, norms
    shape = shape_of(made, 1000, CATALOGUE)
    assert (shape.layer, shape.outside, shape.head) == (layer, 1000 * 64 + 64, 1000 * 64)
    assert shape.parameters == shape.backbone == 3 * layer + 1000 * 64 + 64  # tied: the head is the embedding
    assert shape.cached == 3 * 2 * 32


def test_checkpointed_activations_grow_by_one_hidden_state_a_layer() -> None:
    def peak(layers: int, loss_tokens: int = 1) -> int:
        return update_peak({**TINY, "num_hidden_layers": layers}, rows=2, length=128, loss_tokens=loss_tokens,
                           precision="bfloat16", checkpointing=True)
    assert peak(9) - peak(5) == 4 * 2 * 128 * 64 * 2
    assert peak(5, 200) - peak(5, 100) >= 100 * 1000 * 4  # at least one float32 logit a word and token


# --- batches ----------------------------------------------------------------------------------------------------------

def test_the_batch_of_a_chain_a_group_and_a_tree() -> None:
    def load(arm: str, branching: tuple[int, ...]) -> Any:
        return workload(run_of(arm, task={"max_observation_tokens": 80}), branching, 10_240, ASSUMED)
    chain, group, tree = load("PPO-OR", (1,) * 4), load("GRPO-OR", (5, 1, 1, 1)), load("MT-GRPO", (3, 3, 3, 1))
    assert (chain.questions, chain.trajectories, chain.leaves) == (512, 512, 1)
    assert (group.questions, group.trajectories) == (102, 510)
    assert (tree.questions, tree.leaves) == (19, 27)
    assert chain.sampled_tokens == 512 * 3 * 50
    assert chain.read_tokens == 512 * (100 + 2 * 40)
    assert tree.sampled_tokens == 19 * 50 * (3 + 9 + 27)  # shared turns once
    assert (chain.row_tokens, chain.row_loss_tokens) == (100 + 3 * 50 + 2 * 40, 150)
    assert chain.optimizer_steps == 500 * 1 * 2
    assert chain.epochs == 500 * 512 / 10_240
    assert chain.micro_batches == 2  # 256 rows of 330 tokens: 24 of them in 8192 tokens, 11 packs, 8 processes


def test_operations_and_seconds_by_hand() -> None:
    assert forward_flops(SHAPE, tokens=3, context=50, logits=2) == 3 * (2 * 10e6 + 4 * 10 * 100 * 50) + 2 * 1e6 * 2
    run = run_of(engine={"tensor_parallel": 2, "max_sequences": 16}, launch={"processes": 4, "offload": ()})
    speed = Speed(flops=1e30, memory_bytes=1e9, host_bytes=1e9)
    # 64 episodes on 2 copies: 2 waves of 16, each step reads the weights and 16 caches of 50 tokens, on 2 GPUs
    seconds = 2 * 7 * 2 * (12e6 + 16 * 50 * 200) / 1e9 / 2
    assert decode_seconds(run, SHAPE, speed, trajectories=64, steps=7, context=50) == pytest.approx(seconds)
    load = workload(run, (1,) * 4, None, ASSUMED)
    slow = Speed(flops=1e12, memory_bytes=1e30, host_bytes=1e30)
    taken = hours(run, load, SHAPE, slow, critic=False, reference=True, sharded=True, validations=0)
    tokens, losses = 512 * load.row_tokens, 512 * load.row_loss_tokens
    forward = forward_flops(SHAPE, tokens, load.row_tokens / 2, losses)
    assert taken.scoring == pytest.approx(500 * forward / 4e12 / 3600)
    assert taken.update == pytest.approx(4 * taken.scoring)  # forward, backward twice that, and forward again
    assert taken.gpu_hours == pytest.approx(4 * (taken.sampling + taken.scoring + taken.update))


# --- memory -----------------------------------------------------------------------------------------------------------

def held(run: RunConfig, *, sharded: bool, critic: bool = True) -> Memory:
    return memory(run, SHAPE, critic=critic, reference=True, sharded=sharded, gpu_bytes=1e9, reserve=0, activations=5,
                  logits=7, sequences=3)


def test_sixteen_bytes_a_trained_weight_wherever_they_lie() -> None:
    whole = held(run_of(launch={"offload": (), "processes": 1, "precision": "float32"}), sharded=False)
    update = whole.gpu[MOMENTS[1]]
    assert update[WEIGHTS] + update[GRADIENTS] + update[OPTIMIZER] == 16 * 12e6
    assert (update[CRITIC], update[REFERENCE]) == (16 * 12e6, 4 * 12e6)
    cut = held(run_of(launch={"offload": (), "processes": 4}), sharded=True).gpu[MOMENTS[1]]
    assert cut[WEIGHTS] + cut[GRADIENTS] + cut[OPTIMIZER] == 16 * 12e6 / 4
    assert cut[GATHERED] == 2 * (2 * 2e6 + 3 * 1e6)
    away = held(run_of(), sharded=True)
    assert {away.gpu[MOMENTS[1]][part] for part in (WEIGHTS, GRADIENTS, OPTIMIZER, CRITIC, REFERENCE)} == {0}
    assert sum(away.host["training"].values()) == 36 * 12e6
    assert sum(away.host["loading"].values()) == 8 * 12 * 12e6  # every process reads all three models


def test_an_engine_that_sleeps_leaves_the_update_its_memory() -> None:
    asleep, awake = (held(run_of(engine={"sleep": sleep}), sharded=True) for sleep in (True, False))
    assert asleep.gpu[MOMENTS[0]][ENGINE] == awake.gpu[MOMENTS[1]][ENGINE] == 0.6e9
    assert asleep.gpu[MOMENTS[1]][ENGINE] == 0
    assert asleep.cache_tokens == (0.6e9 - 2 * 12e6 / 4) * 4 / (2 * 200)  # on 4 GPUs


# --- the scales that ship ---------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def paper() -> Scale:
    return load_scale("paper", ROOT / "config")


def changed(scale: Scale, **changes: dict[str, Any]) -> Scale:
    """A scale whose search experiment has other values in a section."""
    raw = scale.model_dump(mode="json", exclude_unset=True)
    for section, values in changes.items():
        place = raw["experiments"]["search"] if section in ("task", "training") else raw
        place[section] = place.get(section, {}) | values
    return Scale.model_validate({**raw, "experiments": {"search": raw["experiments"]["search"]}, "checkpoints": {}})


@pytest.mark.parametrize("name", ["paper", "gpu"])
def test_the_plans_that_ship_fit(name: str) -> None:
    scale = load_scale(name, ROOT / "config")
    plan = make_plan(scale, ROOT)
    plan.check()
    trained = {scale.identical(e, arm) for e, found in scale.experiments.items() for arm in found.arms}
    assert {(found.run.experiment, found.run.arm) for found in plan.runs} == trained
    assert "fault" not in to_csv(plan)
    for found in plan.runs:
        assert found.gpu is not None
        assert found.memory.peak[1] < GIB * found.gpu.memory_gib


def test_the_papers_batches(paper: Scale) -> None:
    two = make_plan(paper, ROOT, "two_turn", "MT-GRPO").runs[0].load
    assert (two.questions, two.leaves, two.trajectories, two.optimizer_steps) == (16, 21, 336, 300)  # E.3
    one = make_plan(paper, ROOT, "search", "MT-PPO").runs[0].load
    assert (one.questions, one.trajectories, one.optimizer_steps) == (512, 512, 1000)  # C.1.3
    assert one.epochs == pytest.approx(500 * 512 / (79_168 + 90_447))


@pytest.mark.parametrize("name", ["paper", "gpu"])
def test_slurm_is_asked_for_what_the_plan_says(name: str) -> None:
    needs = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())["__variables__"]["needs"]["train"]
    for found in make_plan(load_scale(name, ROOT / "config"), ROOT).runs:
        assert found.hours is not None
        assert found.hours.gpus == needs["gpu"][name]
        assert found.memory.host_peak[1] < 1e6 * needs["mem_mb"][name]


@pytest.mark.parametrize(("changes", "key"), [
    ({"launch": {"offload": ["reference"], "processes": 4}}, "engine.gpu_memory_utilization"),
    ({"training": {"micro_batch_tokens": 524288}}, "training.micro_batch_tokens"),
    ({"engine": {"tensor_parallel": 1, "gpu_memory_utilization": 0.15}}, "engine.gpu_memory_utilization"),
    ({"engine": {"tensor_parallel": 3}}, "engine.tensor_parallel"),
    ({"launch": {"host_memory_gib": 100}}, "launch.host_memory_gib"),
    ({"launch": {"accelerate": "one_gpu"}}, "launch.accelerate"),
    ({"launch": {"accelerate": "zero3"}}, "launch.accelerate"),
    ({"task": {"max_context_tokens": 200_000}}, "task.max_context_tokens"),
    ({"training": {"trajectories_per_step": 16}}, "training.trajectories_per_step"),
    ({"training": {"minibatches": 1000}}, "training.minibatches"),
    ({"launch": {"gpu": "H100"}}, "launch.gpu = 'H100'"),
    ({"launch": {"accelerate": "fsdp"}}, "launch.accelerate = 'fsdp'"),
])
def test_what_cannot_fit_is_refused_with_the_key_to_change(paper: Scale, changes: dict[str, Any], key: str) -> None:
    arm = "MT-GRPO" if "trajectories_per_step" in str(changes) else "MT-PPO"
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        make_plan(changed(paper, **changes), ROOT, "search", arm).check()


def test_a_warning_that_ends_before_the_save_is_refused(paper: Scale, tmp_path: Path) -> None:
    (tmp_path / "config").symlink_to(ROOT / "config")
    found = make_plan(paper, tmp_path, "search", "GRPO-OR").runs[0]
    saved, duration = 12 * 7_615_616_512, found.hours  # weights and two moments of Adam, float32
    assert duration is not None
    assert found.warning_s is not None
    assert (found.checkpoint_bytes, found.kept_bytes) == (3 * saved, 0)
    assert found.save_s == pytest.approx(2 * saved / 1e9)  # written, and read for its hash, at 1 GB/s
    a_step = 3600 * (duration.scoring + duration.update + duration.traffic) / found.run.training.steps
    assert found.warning_s == pytest.approx(found.save_s + a_step)
    site = tmp_path / "profiles/slurm/site.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(f"warning_s: {int(found.warning_s)}")
    with pytest.raises(ConfigError, match=r"warning_s = .* an update and a save take .* s; set it to"):
        make_plan(paper, tmp_path, "search", "GRPO-OR").check()
    site.write_text(f"warning_s: {int(found.warning_s) + 1}")
    make_plan(paper, tmp_path, "search", "GRPO-OR").check()


@pytest.mark.parametrize("name", ["paper", "gpu"])
def test_the_shown_memory_makes_the_shown_sum(name: str) -> None:
    """Every part has a column: a row's cells, each rounded to 0.1 GiB, make its sum."""
    shown = next(table for table in tables(make_plan(load_scale(name, ROOT / "config"), ROOT))
                 if isinstance(table, Table) and "Memory" in str(table.title))
    columns = [list(column.cells) for column in shown.columns]
    assert "reserve" in [column.header for column in shown.columns]
    for _, _, *parts, total, _ in zip(*columns, strict=True):
        held = [float(str(part)) for part in parts if part]
        assert abs(sum(held) - float(str(total))) < 0.05 * (len(held) + 1) + 1e-6


def test_the_command_prints_the_plan_and_fails_where_it_cannot_run(tmp_path: Path) -> None:
    arguments = ["plan", "--scale", "gpu", "--experiment", "search", "--arm", "MT-PPO"]
    done = CliRunner().invoke(cli.app, [*arguments, "--root", str(ROOT), "--output", str(tmp_path / "plan.csv")])
    assert done.exit_code == 0, done.output
    assert "494,032,768 weights" in done.output
    assert (tmp_path / "plan.csv").read_text().startswith(
        "experiment,arm,section,item,value\nsearch,MT-PPO,batch,runs,3\n")
    (tmp_path / "config").mkdir()
    for name in ("gpu", "models", "algorithms", "sources"):
        text = (ROOT / "config" / f"{name}.yaml").read_text()
        (tmp_path / "config" / f"{name}.yaml").write_text(text.replace(
            "micro_batch_tokens: 6144", "micro_batch_tokens: 61440"))
    (tmp_path / "config" / "accelerate").symlink_to(ROOT / "config" / "accelerate")
    done = CliRunner().invoke(cli.app, [*arguments, "--root", str(tmp_path)])
    assert done.exit_code == 2
    assert "training.micro_batch_tokens" in done.output
