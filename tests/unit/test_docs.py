"""The pages tell of code that is there: every name in them resolves, every value is the configured one."""

from __future__ import annotations

import ast
import csv
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.main import get_command

from turncredit.cli.main import app
from turncredit.config import algorithm as algorithm_config
from turncredit.config import data as materials
from turncredit.config import experiment as experiments
from turncredit.config import load as config
from turncredit.config import retriever as retrieval_config
from turncredit.config import runtime as equipment
from turncredit.config import training as training_config
from turncredit.config.credit_bench import CreditBenchConfig
from turncredit.data.sources import load_registry
from turncredit.miniature.build import build_world
from turncredit.miniature.questions import SPLITS
from turncredit.reporting.catalogue import FIGURES, TABLES
from turncredit.tasks.registry import TASKS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "turncredit"
MAP, KEYS, README = "docs/PAPER_MAP.md", "config/README.md", "README.md"
USAGE, CLUSTER, DATA = "docs/USAGE.md", "docs/CLUSTER.md", "docs/DATA.md"
PAGES = (MAP, "docs/COST.md", "docs/DEVIATIONS.md", USAGE, CLUSTER, DATA, KEYS, README)
WITHOUT_PREFIX = (KEYS, USAGE, CLUSTER, DATA)  # pages that write `section.key`, not `config.section.key`
README_BYTES = 10_240
FILES = ("csv", "gz", "yaml", "json", "jsonl", "md", "rst", "pdf", "png", "html", "py", "txt", "smk", "toml", "lock")
# Where a short name of a page's `config.*` begins: the model whose fields follow.
SECTIONS: dict[str, type[BaseModel]] = {
    "": config.Scale, "world": materials.WorldConfig, "questions": materials.QuestionsConfig,
    "retriever": retrieval_config.RetrieverConfig, "faiss": retrieval_config.FaissConfig,
    "server": retrieval_config.ServerConfig, "policy": materials.PolicyConfig,
    "warm_start": materials.WarmStartConfig, "engine": equipment.EngineConfig, "launch": equipment.LaunchConfig,
    "checkpoint": experiments.CheckpointConfig, "credit_bench": CreditBenchConfig,
    **{f"rewards.{name}": task.rewards for name, task in TASKS.items()},
    "experiment": experiments.Experiment, "task": TASKS["search"].config, "training": training_config.TrainingConfig,
    "arm": experiments.Arm, "overrides": experiments.ArmOverrides, "algorithm": algorithm_config.Algorithm}
# Fields that are no keys of their own: told by other tables, or (name) the file's name.
NESTED = {
    "": {"name", "world", "questions", "retriever", "retrievers", "policy", "warm_start", "engine", "launch",
         "rewards", "experiments", "checkpoints", "algorithms", "credit_bench"},
    "retriever": {"faiss", "server"}, "arm": {"overrides"},
    "experiment": {"task", "training", "engine", "launch", "arms"}}


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def quoted(page: str) -> list[str]:
    """Everything in backticks, code blocks aside."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL))


def rows(page: str) -> Iterator[dict[str, str]]:
    """The rows of all tables, by the words of their headers."""
    header: list[str] = []
    for line in text(page).splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if not header:
            header = cells
        elif not set(line) <= set("|:- "):
            assert len(cells) == len(header), f"{page}: {len(cells)} cells under {len(header)} headers: {line}"
            yield dict(zip(header, cells, strict=True))


@cache
def names_in(path: Path) -> dict[str, set[str]]:
    """Top-level names of a module, each with the names inside it if it is a class."""
    def defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name, node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node
            elif isinstance(node, ast.Assign):
                yield from ((n.id, node) for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {name: {inner for inner, _ in defined(node.body)} if isinstance(node, ast.ClassDef) else set()
            for name, node in defined(tree.body)}


def is_python(reference: str) -> bool:
    """Whether ``package.module.name`` (or a module alone) is in the source, without importing it."""
    parts = reference.split(".")
    for depth in range(len(parts), 0, -1):
        folder, rest = (ROOT if parts[0] == "bench" else SOURCE).joinpath(*parts[:depth]), parts[depth:]
        for module in (folder.with_suffix(".py"), folder / "__init__.py"):
            if module.exists():
                found = names_in(module)
                inside = rest[:1] and rest[0] in found and (len(rest) == 1 or rest[1] in found[rest[0]])
                return not rest or (bool(inside) and len(rest) <= 2)
    return False


def is_key(reference: str) -> bool:
    """Whether ``config.section.key`` is a key of the configuration."""
    _, *parts = reference.split(".")
    if parts[0] == "algorithms":
        return len(parts) == 2 and parts[1] in config.load_scale("mini", ROOT / "config").algorithms
    section, key = ".".join(parts[:-1]), parts[-1]
    return section in SECTIONS and key in SECTIONS[section].model_fields


def fault(reference: str, page: str = MAP) -> bool:
    """Whether something that looks like a reference leads nowhere."""
    if reference.startswith("tests/") and "::" in reference:
        file, _, name = reference.partition("::")
        return not (ROOT / file).exists() or name not in names_in(ROOT / file)
    if re.fullmatch(r"(config|docs|envs|profiles|src|tests|workflow|paper_tables/reported)(/[\w.-]+)+", reference):
        return not (ROOT / reference).exists()
    if re.fullmatch(r"(fig\d+|table\d+)_\w+", reference):
        return reference not in {*FIGURES, *TABLES}
    if not re.fullmatch(r"[a-z_]+(\.[\w-]+)+", reference) or reference.rpartition(".")[2] in FILES:
        return False
    if page in WITHOUT_PREFIX and is_key(f"config.{reference}"):
        return False
    if reference.startswith("config."):
        return not is_key(reference)
    return not is_python(reference.removeprefix("turncredit."))


@pytest.mark.parametrize("page", PAGES)
def test_every_name_in_a_page_is_there(page: str) -> None:
    assert not [reference for reference in quoted(page) if fault(reference, page)]


@pytest.mark.parametrize("reference", [
    "bench.costs", "credit.gae.gea", "credit.goe.gae", "credit.grpo.group_zscore.x", "config.training.lambda",
    "config.trainig.steps", "config.rewards.search.corect", "config.algorithms.PPO",
    "tests/unit/test_credit.py::test_nothing", "tests/unit/test_credits.py::test_x",
    "docs/MAP.md", "fig2_training_dynamics"])
def test_a_wrong_name_would_be_noticed(reference: str) -> None:
    assert fault(reference)


def test_the_map_holds_every_equation_and_every_comparison_of_every_claim() -> None:
    equations = {int(n) for row in rows(MAP) if "eq." in row for n in re.findall(r"\d+", row["eq."])}
    assert equations == set(range(1, 13))
    with (ROOT / "paper_tables/reported/claim_tests.csv").open(encoding="utf-8") as file:
        fixed: dict[str, list[str]] = {}
        for test in csv.DictReader(file):
            fixed.setdefault(test["claim_id"], []).append(test["claim_id"] + test["part"])
    assert {row["claim"]: row["comparisons"].split(", ") for row in rows(MAP) if "claim" in row} == fixed
    missing = {name for name in (*FIGURES, *TABLES) if f"`{name}`" not in text(MAP)}
    assert not missing


def configured(key: str, experiment: str) -> Any:
    """The value that an experiment of scale mini has for ``config.section.key``."""
    scale = config.load_scale("mini", ROOT / "config").model_dump(mode="json")
    owner: Any = scale | {name: scale["experiments"][experiment][name] for name in ("task", "training")}
    for part in key.split(".")[1:]:
        owner = owner[part]
    return owner


def test_the_map_holds_the_values_of_scale_mini_and_marks_those_that_differ() -> None:
    wrong, seen = [], 0
    for row in rows(MAP):
        column = next((name for name in row if name.startswith("mini: ")), None)
        key = row.get("key", "").strip("`")
        if column is None or row[column] == "—":
            continue
        seen += 1
        value = configured(key, column.removeprefix("mini: "))
        written = yaml.safe_load(row[column].strip("*"))
        reported = re.fullmatch(r"[-−]?\d[\d.]*(e-\d+)?", row["paper"])
        differs = reported and float(row["paper"].replace("−", "-")) != value
        if written != value or (reported and bool(differs) != row[column].startswith("**")):
            wrong.append(f"{key}: {row[column]} in the map, {value!r} in config/mini.yaml, {row['paper']} in the paper")
    assert seen > 40
    assert not wrong


def test_the_readme_of_the_configuration_holds_every_key_with_its_default() -> None:
    expected: dict[str, Any] = {}
    for section, model in (*SECTIONS.items(), *(("task", task.config) for task in TASKS.values())):
        for name, field in model.model_fields.items():
            if name not in NESTED.get(section, ()):
                default = "required" if field.is_required() else field.get_default(call_default_factory=True)
                key = f"{section}.{name}" if section else name
                expected[key] = list(default) if isinstance(default, tuple) else default
    written = {row["key"].strip("`"): yaml.safe_load(row["default"]) for row in rows(KEYS) if "default" in row}
    assert written == expected


def test_the_readmes_tree_holds_every_folder_and_nothing_else() -> None:
    tree = next(block for block in re.findall(r"```\n(.*?)```", text(README), re.DOTALL) if "src/turncredit/" in block)
    drawn, folders = set(), [""]
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = list(takewhile(lambda word: word.endswith("/"), line.split()))  # a line may name several folders
        assert names, line
        drawn |= {folders[depth] + name for name in names}
        folders = [*folders[: depth + 1], folders[depth] + names[-1]]
    assert not {name for name in drawn if not (ROOT / name).is_dir()}
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
    tracked = {name for name in map(Path, listed.stdout.splitlines()) if (ROOT / name).exists()}
    top = {f"{name.parts[0]}/" for name in tracked if len(name.parts) > 1 and not name.parts[0].startswith(".")}
    rooms = {f"{name.parent}/" for name in tracked if name.match("src/turncredit/*/__init__.py")}
    assert not (top - {"src/"} | rooms) - drawn


def test_the_readme_has_one_place_for_the_generated_results() -> None:
    written = re.search(r'^BEGIN, END = "(.+)", "(.+)"$', (SOURCE / "reporting/summary.py").read_text(), re.MULTILINE)
    assert written
    begin, end = written.groups()
    assert [text(README).count(marker) for marker in (begin, end)] == [1, 1]
    assert text(README).index(begin) < text(README).index(end)


def test_the_readme_is_short_and_its_table_is_that_of_idea() -> None:
    assert len(text(README).encode()) <= README_BYTES
    table = re.search(r"<!-- table: two turns, .*? -->\n\n(.*?)\n\n<!-- end -->", text("docs/IDEA.md"), re.DOTALL)
    assert table
    assert table[1] in text(README)


@pytest.mark.parametrize("page", [README, "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", target.read_text(encoding="utf-8"), flags=re.DOTALL),
                            re.MULTILINE) if heading else []
        assert not heading or heading in {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}, link


def test_the_usage_page_names_every_make_target_and_every_command() -> None:
    named = text(USAGE)
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE)) - {"help", "setup"}
    assert not {target for target in targets if f"make {target}" not in named}
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert {"train", "import-run"} <= commands
    assert not {name for name in commands if not re.search(rf"(turncredit |`){name}\b", named)}


def test_the_data_page_holds_every_source_and_the_mini_world(tmp_path: Path) -> None:
    registry = load_registry(ROOT)
    told = {name: row for row in rows(DATA) if "source" in row for name in re.findall(r"`([\w.-]+)`", row["source"])}
    assert told.keys() == registry.sources.keys()
    for name, source in registry.sources.items():
        counts = {str(n) for file in source.files.values() for n in [sum(file.rows.values())] if n}
        assert counts <= {n.replace(",", "") for n in re.findall(r"\d[\d,]*", told[name]["rows"])}, name
        if source.files and all(file.size for file in source.files.values()):
            assert f"{source.bytes:,}" in told[name]["download"], name
    build_world(config.load_scale("mini", ROOT / "config").require_world(), tmp_path)
    world = json.loads((tmp_path / "world.json").read_text())
    assert f"{world['countries']} countries and {world['passages']:,} passages" in text(DATA)
    counted = {row["set"].strip("`"): row for row in rows(DATA) if "chance level" in row}
    assert {n: {s: int(row[s]) for s in SPLITS} for n, row in counted.items()} == world["questions"]
    assert {n: float(row["chance level"]) for n, row in counted.items()} == world["chance"]
    examples = {row["set"].strip("`"): row["example from the test split"] for row in rows(DATA) if "hops" in row}
    for name, example in examples.items():
        assert example in (tmp_path / "questions" / f"{name}.test.jsonl").read_text()
