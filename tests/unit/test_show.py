"""Episodes for people: records survive any byte, credits are those of training, the page is safe and works offline."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from turncredit.cli.show import shown_algorithms
from turncredit.config.load import load_scale
from turncredit.config.training import TrainingConfig
from turncredit.episodes.records import (
    EpisodeRecord,
    GroupRecord,
    RewardRecord,
    TurnRecord,
    read_records,
    write_records,
)
from turncredit.errors import DataError
from turncredit.show import html
from turncredit.show.credits import all_credits
from turncredit.show.terminal import group_view

ROOT = Path(__file__).parents[2]
ALGORITHMS = load_scale("mini", ROOT / "config").algorithms
HOSTILE = "</script><script>document.title='taken'</script><b>\r\x1b[31m\u202e"


def episode(nodes: tuple[int, ...], intermediate: float, outcome: float, said: str = "x") -> EpisodeRecord:
    reward = RewardRecord((intermediate, 0.0), outcome)
    plain = RewardRecord((0.0, 0.0), max(outcome, 0.0))
    first = TurnRecord((said, " </search>"), (-0.5, -0.1), "tag", "<information> shilling </information>", 3)
    return EpisodeRecord(nodes, (first, TurnRecord((" shilling",), (-0.2,), "tag")), "answered",
                         {"outcome": plain, "merged": reward, "full": reward}, {"answer_correct": 1.0}, {"f1": 1.0})


def record(said: str = "x", label: str = "group") -> GroupRecord:
    episodes = (episode((0, 1), 0.3, 1.0, said), episode((2, 3), 0.0, -1.0, said))
    return GroupRecord({"arm": "MT-PPO"}, "training", 3, label, "facts", "facts-7",
                       {"id": "facts-7", "question": f"What? {said}"}, f"<|user|>{said}", 4, episodes)


def shown(found: GroupRecord) -> str:
    credits = all_credits(ALGORITHMS, TrainingConfig(), found.group(), {
        content: found.rewards(content) for content in ("outcome", "merged", "full")})
    console = Console(width=180, record=True, file=io.StringIO())
    console.print(group_view(found, credits, range(len(found.episodes))))
    return console.export_text()


@given(st.lists(st.text(st.characters(codec=None), min_size=1), min_size=1, max_size=3))
def test_a_record_is_read_back_equal_whatever_was_sampled(tmp_path_factory: pytest.TempPathFactory,
                                                          said: list[str]) -> None:
    path = tmp_path_factory.mktemp("records") / "episodes.jsonl"
    records = [record(text) for text in said]
    write_records(path, records)
    assert read_records(path) == records


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"source": "training"}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "episodes.jsonl"
    write_records(path, [record()])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=r"episodes.jsonl:2: not an episode record"):
        read_records(path)
    with pytest.raises(DataError, match="no such file"):
        read_records(tmp_path / "none.jsonl")


def test_the_terminal_shows_turns_rewards_and_the_credit_under_every_algorithm() -> None:
    found = shown(record())
    assert "facts facts-7 (training step 3)" in found
    assert "turn 1  x </search>" in found
    assert "<information> shilling </information>" in found
    lines = [line.split() for line in found.splitlines()]
    at = next(i for i, words in enumerate(lines) if words[:1] == ["credit"])
    table = [dict(zip(lines[at][1:], words[2:], strict=True)) for words in lines[at + 2:at + 4]]
    assert [row["MT-GRPO"] for row in table] == ["2.00", "1.00"]
    assert [row["MT-PPO"] for row in table] == ["1.30", "1.00"]
    assert [row["PPO-MR"] for row in table] == ["1.30", "1.30"]
    assert [row["GRPO-OR"] for row in table] == ["1.00", "1.00"]


def test_a_lone_episode_has_no_group_credit() -> None:
    lone = GroupRecord({}, "evaluation", None, "right", "facts", "facts-7", {}, "p", 1, (episode((0, 1), 0.3, 1.0),))
    credits = all_credits(ALGORITHMS, TrainingConfig(), lone.group(), {
        content: lone.rewards(content) for content in ("outcome", "merged", "full")})
    assert [name for name, found in credits.items() if found is None] == ["GRPO-OR", "GRPO-MR", "MT-GRPO", "RLOO-OR"]
    assert "final evaluation, right" in shown(lone)


def page(said: str) -> str:
    found = record(said)
    credits = all_credits(ALGORITHMS, TrainingConfig(), found.group(), {
        content: found.rewards(content) for content in ("outcome", "merged", "full")})
    return html.page("search/MT-PPO/base-0/seed-0", [(found, credits)], "MT-PPO")


def test_the_page_is_self_contained_and_no_text_escapes() -> None:
    written = page(HOSTILE)
    assert not re.search(r"(src|href)=|https?://|@import", written)
    assert written.count("<script>") == written.count("</script>") == 1
    assert "\r" not in written
    assert "\u202e" not in written
    assert "&lt;/script&gt;" in written


def test_chromium_shows_it_with_coloured_tokens(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    (tmp_path / "page.html").write_text(page(HOSTILE), encoding="utf-8")
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
                           f"--user-data-dir={tmp_path}/profile", "--dump-dom", f"file://{tmp_path}/page.html"],
                          capture_output=True, text=True, timeout=120, check=True)
    tokens = re.findall(r'<span class="t s" data-turn="(\d)" data-episode="(\d)"[^>]*title="([^"]*)" '
                        r'style="background: ([^"]*);"', done.stdout)
    assert len(tokens) == 6
    colour = {(episode, turn): (background, title) for turn, episode, title, background in tokens}
    assert "<title>search/MT-PPO/base-0/seed-0</title>" in done.stdout  # the sampled script did not run
    assert "credit 1.30" in colour["0", "0"][1]  # the run's own algorithm is shown first
    assert "credit -1.00" in colour["1", "0"][1]
    assert colour["0", "0"][0] != colour["1", "0"][0]


def test_an_arm_with_its_own_algorithm_is_shown_under_it_first() -> None:
    run = load_scale("mini", ROOT / "config").run("search", "MT-PPO", 0)
    assert list(shown_algorithms(run, ALGORITHMS).items()) == list(ALGORITHMS.items())
    delayed = run.algorithm.model_copy(update={"placement": "delayed"})
    changed = shown_algorithms(run.model_copy(update={"algorithm": delayed}), ALGORITHMS)
    assert next(iter(changed.items())) == ("MT-PPO", delayed)
    assert changed["MT-PPO (unchanged)"] == ALGORITHMS["MT-PPO"]
    renamed = shown_algorithms(run.model_copy(update={"arm": "placement", "algorithm": delayed}), ALGORITHMS)
    assert list(renamed) == ["placement", *ALGORITHMS]
