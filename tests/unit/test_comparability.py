"""Which numbers are comparable with the paper's, and how the audit judges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import synthetic_runs as synthetic
from turncredit.config.load import Scale, load_scale
from turncredit.reporting.audit import audit
from turncredit.reporting.comparability import comparability, differences
from turncredit.reporting.reported import read_reported
from turncredit.reporting.runs import read_folders

ROOT = Path(__file__).parents[2]
PAPER = load_scale("paper", ROOT / "config")


def changed(*path: str, value: object) -> Scale:
    raw: dict[str, Any] = PAPER.model_dump(mode="json", exclude_unset=True)
    place = raw
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return Scale.model_validate(raw)


def test_scale_paper_measures_what_the_paper_measures_and_no_other_scale_does() -> None:
    assert not differences(PAPER, "search")
    assert differences(PAPER, "two_turn") == ("a prompt in our words",)
    assert "(search aside): a prompt in our words" in comparability(PAPER)
    for arm in ("PPO-OR", "PPO-MR", "MT-PPO"):
        assert not differences(PAPER, "search", arm)
    # the paper's GRPO row of search is Search-R1's policy: 512 questions a step
    assert differences(PAPER, "search", "GRPO-OR") == ("102 questions a step instead of 512",)
    assert differences(PAPER, "search", "MT-GRPO") == ("18 questions a step instead of 512",)
    for name in ("mini", "smoke", "gpu"):
        scale = load_scale(name, ROOT / "config")
        assert differences(scale, "search")
        assert differences(scale, "two_turn")
        assert comparability(scale).startswith("Not comparable")


@pytest.mark.parametrize(("path", "value", "says"), [
    (("policy",), {"path_or_id": "Qwen/Qwen2.5-1.5B"}, "Qwen/Qwen2.5-1.5B instead of Qwen2.5-7B"),
    (("questions", "test_questions"), 100, "not all test questions"),
    (("retriever", "faiss", "index"), "hnsw", "another dense retriever"),
    (("retriever",), {"kind": "lucene", "corpus": "wiki-18"}, "BM25 retrieval by Lucene"),
    (("retriever", "corpus"), "wiki-21", "passages of wiki-21"),
    (("experiments", "search", "task", "top_k"), 5, "k = 5 passages per search instead of 3"),
    (("experiments", "search", "task", "max_turns"), 6, "N_max = 6 instead of 4"),
    (("experiments", "search", "task", "prompt"), "own", "a prompt in our words"),
    (("experiments", "search", "training", "minibatches"), 4, "512 trajectories in 4 minibatches a step instead of"),
    (("experiments", "search", "training", "loss_aggregation"), "sequence", "averages over sequences"),
    (("reading",), "text", "averages over sequences")])
def test_each_difference_is_named(path: tuple[str, ...], value: object, says: str) -> None:
    scale = changed(*path, value=value)
    if says.startswith("passages"):
        scale = scale.model_copy(update={"retriever": scale.retriever.model_copy(update={"prebuilt": None})})
    found = differences(scale, "search")
    assert any(says in words for words in found)
    assert len(found) == 1  # and nothing that is the same


def test_an_audit_of_comparable_runs_says_how_ours_stand_to_the_reported_numbers(tmp_path: Path) -> None:
    arms = {"search": {arm: PAPER.experiments["search"].arms[arm] for arm in ("PPO-OR", "PPO-MR", "MT-PPO")},
            "two_turn": PAPER.experiments["two_turn"].arms}
    few = {name: PAPER.experiments[name].model_copy(update={"arms": found, "seeds": 3}) for name, found in arms.items()}
    scale = PAPER.model_copy(update={"experiments": few})
    made = synthetic.write_experiments(tmp_path, scale, {"search": 3, "two_turn": 3})
    entries = {e.id: e for e in audit(read_folders(made, scale), scale, read_reported(ROOT / "paper_tables/reported"))}
    assert entries["t2-mt-ppo-nq-answer-correct"].verdict == "ours is higher"  # the synthetic runs have about 0.8
    assert entries["t5-mt-grpo-exact-match"].verdict == "not comparable"  # a prompt in our words
    assert entries["t2-ppo-otc-nq-answer-correct"].verdict == "no analogue"
    assert entries["t2-ppo-stepsearch-nq-answer-correct"].verdict == "not run"
    assert "Zill1/StepSearch-7B-Base" in entries["t2-ppo-stepsearch-nq-answer-correct"].note
    assert entries["3c"].verdict != "not run"  # facts and bridge are NQ and HotpotQA here
    assert entries["13d"].verdict != "not run"
