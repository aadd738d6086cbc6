"""The collapse modes that replications met, each as a history of metrics."""

import pytest

from turncredit.training.monitor import collapse_flags

HEALTHY = {"reward_total": 0.5, "answer_correct": 0.3, "grad_norm": 1.0, "zero_std_groups": 0.4, "turns_mean": 2.5,
           "stop_answered": 0.9, "format_correct": 0.9, "tokens_sampled": 1000, "trajectories": 20,
           "sampler_trainer_kl": 1e-6}
START = {"step": 0, "validation_facts_answer_correct": 0.1}


def history(**last: float) -> list[dict[str, float]]:
    healthy = [HEALTHY | {"reward_total": 0.5 + 0.01 * i} for i in range(6)]
    return [START, *healthy, *[HEALTHY | last | {"reward_total": last.get("reward_total", 0.1 * i)} for i in range(5)]]


def test_a_healthy_run_has_no_flag():
    assert collapse_flags(history(), max_turns=4, success="answer_correct") == ()
    assert collapse_flags([START], max_turns=4, success="answer_correct") == ()


@pytest.mark.parametrize(("flag", "symptoms"), [
    ("reward_flat", {"reward_total": 0.0, "answer_correct": 0.0}),
    ("reward_flat", {"reward_total": -1.0, "answer_correct": 0.0}),
    ("zero_gradient", {"grad_norm": 0.0}),
    ("no_contrast", {"zero_std_groups": 1.0}),
    ("length_explosion", {"tokens_sampled": 4000}),
    ("searches_pinned", {"turns_mean": 4.0, "stop_answered": 0.1}),
    ("single_turn", {"turns_mean": 1.0}),
    ("format_lost", {"format_correct": 0.01}),
    ("sampler_drift", {"sampler_trainer_kl": 0.02}),
])
def test_each_mode_raises_its_own_flag_and_no_other(flag, symptoms):
    assert collapse_flags(history(**symptoms), max_turns=4, success="answer_correct") == (flag,)


def test_a_format_that_never_was_right_is_flagged_until_it_is_right_once():
    rows = [row | {"format_correct": 0.0} for row in history()]
    assert collapse_flags(rows, max_turns=4, success="answer_correct") == ("format_never_right",)
    assert collapse_flags([*rows, rows[-1] | {"format_correct": 0.02}], max_turns=4, success="answer_correct") == ()
    assert collapse_flags(rows[:5], max_turns=4, success="answer_correct") == ()  # four steps: too early to say


def test_a_solved_task_that_needs_all_turns_is_not_pinned():
    assert collapse_flags(history(turns_mean=2.0, stop_answered=1.0), max_turns=2, success="answer_correct") == ()


def test_what_is_not_measured_raises_nothing():
    rows = [{name: value for name, value in row.items() if name not in ("zero_std_groups", "sampler_trainer_kl")}
            for row in history()]
    assert collapse_flags(rows, max_turns=4, success="answer_correct") == ()


def test_a_flat_reward_is_no_collapse_of_a_solved_task_or_of_one_without_its_measure():
    rows = [{name: value for name, value in row.items() if name != "answer_correct"} | {"solved": 1.0}
            for row in history(reward_total=1.0)]
    assert collapse_flags(rows, max_turns=4, success="solved") == ()
    assert collapse_flags(rows, max_turns=4, success="answer_correct") == ()
    failed = [row | {"solved": 0.0} for row in rows]
    assert collapse_flags(failed, max_turns=4, success="solved") == ("reward_flat",)
