"""The numbers in the text of docs/COST.md follow from its formulas and agree with its tables of measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turncredit.config.load import load_scale

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/COST.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
SCALE = load_scale("mini", ROOT / "config")


def table(header: str) -> dict[str, list[float]]:
    """The numbers of the table whose first header is ``header``, by row; brackets are left out."""
    lines = PAGE.split(f"| {header} |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: [float(re.sub(r" \[.*", "", cell)) for cell in cells] for name, *cells in rows}


def turns_of_tree(actions: int, turns: int) -> tuple[int, int]:
    """Distinct sampled turns and leaves of a tree that is not branched at its last turn."""
    leaves = actions ** (turns - 1)
    return sum(actions**k for k in range(1, turns)) + leaves, leaves


def test_the_counts_of_trees_are_those_of_the_formulas() -> None:
    (three, leaves_3), (four, leaves_4) = turns_of_tree(4, 3), turns_of_tree(4, 4)
    assert f"{three} distinct turns and {leaves_3} leaves for K = 3, and {four} and {leaves_4} for K = 4" in WORDS
    assert turns_of_tree(4, 2) == (2 * 4, 4)  # at K = 2 a tree is G chains
    written = [turns * leaves / distinct for turns, distinct, leaves in ((3, three, leaves_3), (4, four, leaves_4))]
    assert "{:.2f} × the tree's at G = 4, K = 3; {:.2f} × at K = 4".format(*written) in WORDS
    assert f"At G = 4, K = 3 exact counting gives {leaves_3 / three / (1 / 3):.2f} ×" in WORDS
    distinct, leaves = turns_of_tree(4, 30)
    assert leaves / distinct == pytest.approx((4 - 1) / (2 * 4 - 1))  # the limit


def test_the_sizes_of_the_mini_policy_are_the_configured_ones() -> None:
    policy = SCALE.policy
    hidden, inner, layers, width = policy.hidden_size, policy.intermediate_size, policy.layers, policy.hidden_size
    keys = width * policy.kv_heads // policy.heads
    body = layers * (2 * hidden * width + 2 * hidden * keys + 3 * hidden * inner)
    assert f"(P = {body / 1e6:.2f} M, L D = {layers * width})" in WORDS
    assert round(body / (2 * layers * width), -2) == 400
    assert f"the head takes {6 * hidden * policy.vocabulary / 1e6:.0f} MFLOP per loss token here" in WORDS
    assert f"the body {6 * body / 1e6:.1f} MFLOP per row token" in WORDS
    weights = body + hidden * policy.vocabulary
    assert f"At scale mini: {16 * weights / 1e6:.0f} MB + 8 MB + {4 * weights / 1e6:.0f} MB" in WORDS
    assert f"which is {100 * 100 * 2 * layers * keys * 4 / 1e6:.0f} MB for 100 episodes of 100 tokens" in WORDS
    assert f"with H = {hidden} the inner dimension of a product is {hidden} to {inner}" in WORDS
    assert f"heads of {width // policy.heads} numbers" in WORDS
    assert "policy has half a million weights" in WORDS
    assert round(weights / 1e6, 1) == 0.5


def test_the_text_agrees_with_the_measured_tables() -> None:
    share = table("operations")
    counted = sum(share[name][0] for name in ("matrix products of the body", "attention",
                                              "matrix products of the output head"))
    assert sum(values[0] for values in share.values()) == 100
    assert f"which take {counted:.0f} % of the time" in WORDS
    assert counted < 40
    steps = table("one training step (medians)")
    peaks = [values[7] for values in steps.values()]
    assert f"the update reached {min(peaks):.0f} to {max(peaks):.0f} % of it" in WORDS
    assert steps["MT-GRPO"][6] > max(steps[arm][6] for arm in ("GRPO-OR", "GRPO-MR"))
    for rollout, scoring, update, step, *_ in steps.values():
        assert rollout + scoring + update == pytest.approx(step, abs=0.06)  # medians of parts and of the whole
    trees = table("G = 4, K = 3, full")
    assert [trees[name][0] for name in trees] == [4 * 3 * 3, 16 * 3, 16 * 3]
    assert 5 < trees["chains"][1] / trees["chains"][2] < 6  # row tokens for each loss token
    for values in trees.values():
        both = (values[3] + values[4]) / (trees["chains"][3] + trees["chains"][4])
        ratios = (values[3] / trees["chains"][3], values[4] / trees["chains"][4], both)
        assert values[5:] == [pytest.approx(ratio, abs=0.03) for ratio in ratios]
    assert max(trees["tree"][5:]) <= 1.3
    engine = table("greedy turns of 64 prompts, same tokens")
    ours, theirs = engine.values()
    assert ours[1] == pytest.approx(ours[0] / theirs[0], abs=0.005)
    for here, trl, ratio in table("ms per sampled token").values():
        assert ratio == pytest.approx(trl / here, rel=0.15)  # a median of ratios beside medians
    one, other = (int(n.replace(",", "")) for n in re.findall(r"\((\d,\d{3}) against (\d,\d{3})\)", WORDS)[0])
    assert f"samples {one / other:.1f} [" in WORDS
    workflow = table("command")
    smoke = workflow["`make smoke`: all 13 trainings of the smallest scale, pages"]
    assert smoke[0] < 4
