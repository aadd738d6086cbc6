"""SLURM requests: the profile and a site file give valid resources for every rule, scale and attempt."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yte

from turncredit.distributed.slurm import Amount, Site
from turncredit.errors import ConfigError
from turncredit.reporting.catalogue import BENCH_FIGURES, FIGURES

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "profiles" / "slurm"


def profile(site: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The profile of a clone whose site.yaml holds ``site``."""
    (folder / "profiles" / "slurm").mkdir(parents=True, exist_ok=True)
    (folder / "profiles" / "slurm" / "site.yaml").write_text(site)
    monkeypatch.chdir(folder)
    with (PROFILE / "config.yaml").open() as file:
        found: dict[str, Any] = yte.process_yaml(file, require_use_yte=True)
    return found


def value(resource: object, scale: str = "mini", attempt: int = 1) -> Any:
    """A resource as Snakemake works it out: numbers as they are, text as Python."""
    if isinstance(resource, int):
        return resource
    assert isinstance(resource, str)
    assert not set("{}") & set(resource), "Snakemake trips over braces"
    return eval(resource, {"wildcards": SimpleNamespace(scale=scale), "attempt": attempt})


def asked(profile: dict[str, Any], rule: str, scale: str = "mini", attempt: int = 1) -> dict[str, Any]:
    """What a job is submitted with."""
    both = profile["default-resources"] | profile["set-resources"].get(rule, {})
    return {name: found for name, resource in both.items() if (found := value(resource, scale, attempt)) is not None}


def test_without_a_site_nothing_in_particular_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = profile("{}", tmp_path, monkeypatch)
    assert asked(bare, "train") == {
        "nodes": 1, "submission_slot": 1, "mem_mb": 8000, "runtime": 720, "slurm_extra": "--signal=USR1@900"}
    assert Site.read(tmp_path / "no such file") == Site()


def test_the_papers_training_has_eight_gpus_of_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_gres = profile("{gpu_partition: a100, partition: all, gpu_model: h100}", tmp_path, monkeypatch)
    job = asked(by_gres, "train", "paper")
    assert (job["gres"], job["nodes"], job["slurm_partition"]) == ("gpu:h100:8", 1, "a100")
    assert asked(by_gres, "train", "mini")["slurm_partition"] == "all", "a word of Python is taken as a word"
    by_gpus = asked(profile("{gpus_by: gpus, gpu_model: h100}", tmp_path, monkeypatch), "train", "paper")
    assert (by_gpus["gpu"], by_gpus["gpu_model"]) == (8, "h100")
    assert "gres" not in by_gpus


def test_what_the_profile_names_are_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    figures = {f"figure_{name}" for name in (*FIGURES, *BENCH_FIGURES)}
    rules = {*re.findall(r"^rule (\w+):$", text, re.MULTILINE), *figures}
    bare = profile("{}", tmp_path, monkeypatch)
    assert set(bare["set-resources"]) | set(bare["groups"]) <= rules
    assert figures < set(bare["groups"])


def test_account_qos_and_constraint_are_every_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = "{account: '123456', qos: long, constraint: ib, extra: --nice=5, warning_s: 60}"
    site = profile(written, tmp_path, monkeypatch)
    for rule in ("world", "train"):
        job = asked(site, rule, "paper")
        assert (job["slurm_account"], job["qos"], job["constraint"]) == ("123456", "long", "ib")
        assert job["slurm_extra"] == "--signal=USR1@60 --nice=5"


@pytest.mark.parametrize("scale", ["smoke", "mini", "gpu", "paper"])
def test_later_attempts_get_more_time_but_never_more_than_the_partition_gives(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    site = profile("{max_runtime: 600, needs: {base_policy: {runtime: 100}}}", tmp_path, monkeypatch)
    assert [asked(site, "base_policy", scale, n)["runtime"] for n in (1, 2, 7)] == [100, 200, 600]
    group_sizes = site["group-components"]
    for rule in ("world", *site["set-resources"]):
        jobs = group_sizes.get(site["groups"].get(rule), 1)
        for attempt in range(1, site["retries"] + 2):
            assert 0 < asked(site, rule, scale, attempt)["runtime"] * jobs <= 600


def test_later_attempts_get_more_memory_up_to_what_a_node_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = profile("max_mem_mb: 14000", tmp_path, monkeypatch)
    assert [asked(site, "train", "mini", n)["mem_mb"] for n in (1, 2, 3)] == [8000, 12000, 14000]
    assert asked(profile("{}", tmp_path, monkeypatch), "train", "mini", 3)["mem_mb"] == 8000


def test_a_site_may_need_more_or_share_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = "needs: {train: {mem_mb: {paper: 900000}}, evaluate: {jobs_per_submission: 1}}"
    site = profile(written, tmp_path, monkeypatch)
    assert asked(site, "train", "paper")["mem_mb"] == 900000
    assert asked(site, "train", "paper")["gres"] == "gpu:8"
    assert site["group-components"]["evaluations-{experiment}"] == 1


@pytest.mark.parametrize(("written", "says"), [
    ("acount: x", "unknown key acount; did you mean 'account'?"),
    ("needs: {train: {gpus: 8}}", "unknown key needs.train.gpus; did you mean 'gpu'?"),
    ("needs: {train: {gpu: -1}}", "needs.train.gpu = -1: expected a whole number >= 0"),
    ("needs: {train: {mem_mb: {paper: 64G}}}", "needs.train.mem_mb = {'paper': '64G'}"),
    ("partition: two words", "partition = 'two words'"),
    ("gpus_by: gpu", "did you mean 'gpus'?"),
    ("[1]", "expected a mapping at the top level"),
])
def test_a_mistake_in_the_sites_file_is_named(tmp_path: Path, written: str, says: str) -> None:
    (tmp_path / "site.yaml").write_text(written)
    with pytest.raises(ConfigError, match=r"site\.yaml") as error:
        Site.read(tmp_path / "site.yaml")
    assert says in str(error.value)


def test_a_rule_that_the_profile_does_not_name_is_named() -> None:
    with pytest.raises(ConfigError, match=r"needs\.trian: no such rule in the profile\s+-> did you mean 'train'\?"):
        Site.model_validate({"needs": {"trian": {"gpu": 1}}}).set_resources({"train": {}})


def test_the_example_names_every_key_with_its_value() -> None:
    example = PROFILE / "site.example.yaml"
    assert Site.read(example) == Site()
    assert Site.read(example).model_fields_set == set(Site.model_fields)


def test_an_amount_is_a_number_for_each_scale() -> None:
    need = Amount.of({"paper": 8, "gpu": 1, "else": 2})
    assert [value(need.resource, scale) for scale in ("paper", "gpu", "mini")] == [8, 1, 2]
    assert value(Amount.of({"paper": 8}).resource, "mini") == 0
