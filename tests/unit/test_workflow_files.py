"""File lists and constraints of the workflow: pure functions of the scale, the call and the clone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from turncredit.config.load import Scale, load_scale, scale_names
from turncredit.data.sources import load_registry
from turncredit.errors import ConfigError, DataError
from turncredit.reporting.catalogue import FIGURES, TABLES
from turncredit.workflow.inputs import ScaleInputs, further_retrievers, one_of, settings_hash, task_experiments
from turncredit.workflow.request import WorkflowRequest, typed
from turncredit.workflow.runs import COLLECTED, ScaleRuns
from turncredit.workflow.unknown_targets import refuse_unknown_page, unknown_page_folder

ROOT = Path(__file__).parents[2]
SCALES = {name: load_scale(name, ROOT / "config") for name in scale_names(ROOT / "config")}
DENSE = {"kind": "faiss", "faiss": {"encoder": "encoders/tiny", "device": "cpu", "shards": 2}}


def runs(root: Path, scale: str = "mini", **call: Any) -> ScaleRuns:
    return ScaleRuns(SCALES[scale], WorkflowRequest(scale, **call), root)


def inputs(scale: Scale) -> ScaleInputs:
    return ScaleInputs(scale, load_registry(ROOT).model_copy(update={"downloads": "downloads"}))


def smoke_with(tmp_path: Path, **changed: object) -> Scale:
    """Scale smoke with other sections."""
    settings = yaml.safe_load((ROOT / "config" / "smoke.yaml").read_text())
    (tmp_path / "algorithms.yaml").write_text((ROOT / "config" / "algorithms.yaml").read_text())
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(settings | changed))
    return load_scale("other", tmp_path)


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_reading_the_workflow_loads_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "pandas", "matplotlib", "scipy", "snakemake"]
    modules = ", ".join(f"turncredit.workflow.{name}" for name in ("inputs", "request", "runs", "unknown_targets"))
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# The call ------------------------------------------------------------------------------------------


def test_values_of_the_command_line_get_their_types_and_the_given_mapping_stays() -> None:
    given = {"experiments": "search", "seeds": {"search": "10", "two_turn": "x"}}
    assert typed(given) == {"experiments": ["search"], "seeds": {"search": 10, "two_turn": "x"}}
    assert given == {"experiments": "search", "seeds": {"search": "10", "two_turn": "x"}}
    with pytest.raises(ConfigError, match=r"--config sclae: no such key\n  -> did you mean 'scale'\?"):
        typed({"sclae": "mini"})


@pytest.mark.parametrize(("config", "says"), [
    ({"scale": "min"}, "no scale 'min' in config/\n  -> did you mean 'mini'?"),
    ({"scale": "mini", "experiments": ["serach"]}, "no experiment 'serach' at scale 'mini'"),
    ({"scale": "mini", "seeds": {"serach": 2}}, "no experiment 'serach' at scale 'mini'\n  -> did you mean 'search'?")])
def test_a_call_names_known_scales_and_experiments(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        WorkflowRequest.of(config | {"runs": "auto"}, SCALES)


def test_a_call_without_experiments_requests_all() -> None:
    assert WorkflowRequest.of({"scale": "mini", "runs": "auto"}, SCALES).includes("search")
    some = WorkflowRequest.of({"scale": "mini", "runs": "auto", "experiments": ["search"]}, SCALES)
    assert (some.includes("search"), some.includes("two_turn")) == (True, False)


# Runs ----------------------------------------------------------------------------------------------


def test_seeds_are_those_of_the_call_or_of_the_scale(tmp_path: Path) -> None:
    scale = SCALES["mini"]
    assert runs(tmp_path).seeds("search") == scale.seeds_of("search")
    assert runs(tmp_path, seeds=7).seeds("search") == 7
    some = runs(tmp_path, seeds={"search": 5})
    assert (some.seeds("search"), some.seeds("two_turn")) == (5, scale.seeds_of("two_turn"))


def test_every_arm_is_trained_from_each_base_policy_with_each_seed(tmp_path: Path) -> None:
    found = runs(tmp_path, bases=2, seeds=2)
    assert found.folders("search")[:4] == [
        f"results/mini/search/GRPO-OR/base-{base}/seed-{seed}" for base in range(2) for seed in range(2)]
    assert found.folders("untrained")[:2] == [f"results/mini/untrained/initial/base-{base}" for base in range(2)]
    checkpoints = [name for name, found in SCALES["paper"].checkpoints.items() if found.in_all]
    assert len(checkpoints) == len(SCALES["paper"].checkpoints) - 1
    assert [folder for folder in runs(tmp_path, "paper").folders("untrained") if folder.split("/")[3] in checkpoints] \
        == [f"results/paper/untrained/{name}/base-0" for name in checkpoints]


def test_a_scale_without_a_warm_start_has_one_base_policy() -> None:
    assert WorkflowRequest.of({"scale": "paper", "runs": "auto", "bases": 1}, SCALES).bases == 1
    with pytest.raises(ConfigError, match="no base policy 1 at scale 'paper'"):
        WorkflowRequest.of({"scale": "paper", "runs": "auto", "bases": 2}, SCALES)


def test_an_arm_that_equals_another_shares_its_folder(tmp_path: Path) -> None:
    found = runs(tmp_path, bases=1, seeds=2)
    search = found.folders("search")
    assert len(search) == len(set(search)) == 2 * len(SCALES["mini"].experiments["search"].arms)
    assert search[:2] == [f"results/mini/search/GRPO-OR/base-0/seed-{n}" for n in range(2)]
    assert set(found.folders("ablation")) & set(search) == {
        f"results/mini/search/MT-PPO/base-0/seed-{n}" for n in range(2)}


def test_an_imported_run_takes_the_place_of_a_trained_one_and_may_lack_metrics(tmp_path: Path) -> None:
    folder = "results/imported/mini/search/MT-PPO/base-0/seed-0"
    touch(tmp_path / folder, "manifest.json")
    found = runs(tmp_path, seeds=1)
    assert folder in found.folders("search")
    assert f"{folder}/evaluation.csv" in found.files("search", "evaluation.csv")
    assert len(found.files("search", "metrics.csv")) == len(found.folders("search")) - 1
    touch(tmp_path / folder, "metrics.csv")
    assert f"{folder}/metrics.csv" in found.files("search", "metrics.csv")


def test_untrained_policies_are_evaluated_only(tmp_path: Path) -> None:
    assert runs(tmp_path).files("untrained", "metrics.csv") == []
    assert runs(tmp_path, bases=1).files("untrained", "evaluation.csv") == [
        f"results/mini/untrained/{name}/base-0/evaluation.csv" for name in ("initial", "expert", "closed_book")]
    needed = [name for name, found in SCALES["paper"].checkpoints.items() if found.in_all]
    assert runs(tmp_path, "paper").untrained_policies() == ["initial", "closed_book", *needed]
    touch(tmp_path / "results/paper/untrained/mt-ppo-nq/base-0", "evaluation.csv")  # not in `all`, evaluated by name
    assert runs(tmp_path, "paper").untrained_policies() == ["initial", "closed_book", *needed, "mt-ppo-nq"]


def test_auto_takes_fresh_runs_then_shipped_ones_then_trains(tmp_path: Path) -> None:
    assert runs(tmp_path).source("search") == "fresh"
    touch(tmp_path / "results/shipped/mini/search", *COLLECTED)
    assert runs(tmp_path).source("search") == "shipped"
    *most, last = runs(tmp_path, seeds=1).folders("search")
    for folder in most:
        touch(tmp_path / folder, "evaluation.csv")
    assert runs(tmp_path, seeds=1).source("search") == "shipped"
    touch(tmp_path / last, "evaluation.csv")
    assert runs(tmp_path, seeds=1).source("search") == "fresh"


def test_an_experiment_that_is_not_requested_is_taken_as_it_is_found(tmp_path: Path) -> None:
    assert runs(tmp_path, experiments=("search",), runs="fresh").source("two_turn") is None
    touch(tmp_path / "results/shipped/mini/two_turn", *COLLECTED)
    assert runs(tmp_path, experiments=("search",), runs="fresh").source("two_turn") == "shipped"


def test_a_source_is_decided_once_in_a_call(tmp_path: Path) -> None:
    """Parameters of jobs are asked for again when other jobs have written more runs."""
    touch(tmp_path / "results/shipped/mini/search", *COLLECTED)
    found = runs(tmp_path, seeds=1)
    assert found.source("search") == "shipped"
    for folder in found.folders("search"):
        touch(tmp_path / folder, "evaluation.csv")
    assert found.source("search") == "shipped"


def test_shipped_runs_are_there_whole_or_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="results/shipped/mini/search: no runs are shipped"):
        runs(tmp_path, runs="shipped").source("search")
    touch(tmp_path / "results/shipped/mini/search", *COLLECTED[1:])
    with pytest.raises(DataError, match=f"search/{COLLECTED[0]}: missing from the shipped runs"):
        runs(tmp_path, runs="shipped").source("search")
    assert runs(tmp_path, runs="fresh").source("search") == "fresh"


def test_pages_are_those_that_have_runs(tmp_path: Path) -> None:
    touch(tmp_path / "results/shipped/mini/search", *COLLECTED)
    found = runs(tmp_path, experiments=("search",))
    assert found.pages(FIGURES) == [name for name, uses in FIGURES.items() if "search" in uses]
    assert set(found.pages(TABLES)) == {name for name, uses in TABLES.items() if not uses or "search" in uses}
    assert "paper_tables/mini/table1_granularity.csv" in found.page_files()
    assert "paper_tables/mini/table1_granularity.csv" not in found.page_files(of="search")
    assert found.page_files(of="search")[-1] == "paper_tables/mini/audit.csv"


def test_a_page_is_made_from_collected_files_and_never_from_none(tmp_path: Path) -> None:
    touch(tmp_path / "results/shipped/mini/search", *COLLECTED)
    found = runs(tmp_path, experiments=("search",))
    assert found.page_inputs(("search", "two_turn")) == [f"results/shipped/mini/search/{name}" for name in COLLECTED]
    assert found.page_inputs(()) == []
    with pytest.raises(ConfigError, match="no runs of two_turn at scale 'mini' exist"):
        found.page_inputs(("two_turn",))


# Inputs --------------------------------------------------------------------------------------------


def test_generated_data_reads_no_download_and_real_data_reads_its_sources() -> None:
    assert inputs(SCALES["mini"]).data() == []
    paper = inputs(SCALES["paper"]).data()
    assert len(paper) == len(set(paper)) > 1
    assert all(re.fullmatch(r"downloads/[^/]+/fetched\.json", file) for file in paper)


def test_a_lucene_index_reads_passages_and_a_dense_one_reads_vectors(tmp_path: Path) -> None:
    dense = inputs(smoke_with(tmp_path, retriever=DENSE, retrievers={"bm25": {"kind": "lucene", "k1": 1.2}}))
    assert dense.index() == ["index/other/index.json", "index/other/faiss"]
    assert dense.index("bm25") == ["index/other/bm25/index.json", "index/other/bm25/lucene"]
    assert dense.all_indexes() == dense.index() + dense.index("bm25")
    assert dense.passages("bm25") == ["data/other/corpus.jsonl"]
    assert dense.vectors() == [
        f"index/other/embeddings/0000{n}-of-00002.{end}" for n in (0, 1) for end in ("npy", "json")]
    assert dense.encoder() == []
    assert inputs(SCALES["paper"]).encoder() == ["downloads/e5-base-v2/fetched.json"]


def test_a_downloaded_index_is_not_built(tmp_path: Path) -> None:
    found = inputs(smoke_with(tmp_path, retriever=DENSE | {"prebuilt": "wiki-18-e5-flat"},
                              retrievers={"kilt": {"prebuilt": "wikipedia-kilt-doc"}}))
    assert found.vectors() == ["downloads/wiki-18-e5-flat/fetched.json"]
    assert found.passages("kilt") == ["downloads/wikipedia-kilt-doc/fetched.json"]


def test_how_vectors_are_computed_changes_no_digest_and_what_they_are_does(tmp_path: Path) -> None:
    def digests(**faiss: object) -> tuple[str, str]:
        found = inputs(smoke_with(tmp_path, retriever={"kind": "faiss", "faiss": DENSE["faiss"] | faiss}))  # type: ignore[operator]
        return found.vectors_settings_hash(), found.faiss_settings_hash()

    plain = digests()
    assert digests(batch=7, shards=5) == plain
    assert digests(encoder="encoders/other")[0] != plain[0]
    assert digests(index="hnsw")[0] == plain[0]
    assert digests(index="hnsw")[1] != plain[1]


def test_threads_change_no_digest_of_a_warm_start_and_its_tasks_do(tmp_path: Path) -> None:
    smoke = yaml.safe_load((ROOT / "config" / "smoke.yaml").read_text())
    one, two = (inputs(smoke_with(tmp_path, warm_start=smoke["warm_start"] | {"threads": n})) for n in (1, 2))
    assert one.warm_start_settings_hash() == two.warm_start_settings_hash()
    smoke["experiments"]["two_turn"]["task"]["top_k"] = 2
    assert inputs(smoke_with(tmp_path, experiments=smoke["experiments"])).warm_start_settings_hash() != \
        one.warm_start_settings_hash()


def test_a_policy_is_downloaded_where_the_registry_names_it() -> None:
    paper = inputs(SCALES["paper"])
    assert len(paper.policy(SCALES["paper"].policy.path_or_id)) == 1
    assert paper.policy("policies/of-mine") == []


def test_the_first_experiment_of_each_task_is_named() -> None:
    assert task_experiments(SCALES["mini"]) == {"search": "search", "tool_search": "two_turn"}


def test_a_digest_reads_models_and_values() -> None:
    policy = SCALES["mini"].policy
    assert settings_hash(policy, 1) == settings_hash(policy.hashed_fields(), 1) != settings_hash(policy, 2)
    assert settings_hash(policy) != settings_hash(policy.model_copy(update={"layers": 9}))


# Constraints ---------------------------------------------------------------------------------------


def test_a_constraint_of_no_name_meets_nothing() -> None:
    assert not re.match(one_of([]), "")
    assert re.fullmatch(one_of(["a", "b"]), "b")


def test_a_further_retriever_is_lucenes(tmp_path: Path) -> None:
    assert further_retrievers({"paper": SCALES["paper"]}) == one_of(SCALES["paper"].retrievers)
    with pytest.raises(ConfigError, match=r"retrievers\.e5: kind faiss"):
        further_retrievers({"other": smoke_with(tmp_path, retrievers={"e5": DENSE})})


@pytest.mark.parametrize("file", ["figures/mini/fig3_all_arms.pdf", "paper_tables/smoke/audit.md",
                                  "paper_tables/mini/headline.txt", "figures/shipped/x", "paper_tables/reported/x.csv"])
def test_files_that_rules_make_or_the_clone_holds_are_no_unknown_pages(file: str) -> None:
    assert not re.match(unknown_page_folder(SCALES), file)


@pytest.mark.parametrize(("file", "says"), [
    ("figures/mini/fig3_all_armz.pdf", "no figure 'fig3_all_armz'"),
    ("figures/mini/fig3_all_arms.pfd", "no file of figure 'fig3_all_arms' ends in 'pfd'"),
    ("figures/mimi/fig3_all_arms.pdf", "no scale 'mimi'"), ("paper_tables/mini/audti.csv", "no table 'audti'")])
def test_an_unknown_page_is_refused(file: str, says: str) -> None:
    assert re.match(unknown_page_folder(SCALES), file)
    folder, scale, name = file.split("/")
    with pytest.raises(ConfigError, match=f"{says}\n  -> did you mean"):
        refuse_unknown_page(folder, scale, name, SCALES)
