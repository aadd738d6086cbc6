"""Collapse flags: pure functions of the metrics that detect a collapsed run. Flagged runs are still reported.

They detect what replications of this paper met: rewards that never vary (so no gradient), answers
that grow without end, agents that search up to the turn limit and never answer, or that give up their tool, and a
format that is lost or was never learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MetricsRow = Mapping[str, float | str | None]

NEVER = 0.01  # format correctness that counts as none
WINDOW = 5  # consecutive training steps that must all meet a flag's condition
SAMPLER_TRAINER_KL_GATE = 0.015  # prime-rl's gate


def collapse_flags(history: Sequence[MetricsRow], *, max_turns: int, success: str) -> tuple[str, ...]:
    """Return the names of the collapse modes seen in the last training steps.

    - ``reward_flat``: the same total reward in every step, and a success of 0;
    - ``zero_gradient``: gradient norms below 1e-6;
    - ``no_contrast``: every group's rewards are all equal;
    - ``length_explosion``: an episode samples over three times the tokens of the first steps;
    - ``searches_pinned``: episodes use all turns, and most end without an answer;
    - ``single_turn``: nearly all episodes end at their first turn, and had 1.5 turns or more in the first steps;
    - ``format_lost``: format correctness fell below a tenth of its best, which was above 0.3;
    - ``format_never_right``: format correctness was at most 0.01 in every step so far;
    - ``sampler_drift``: in the last step, sampler and trainer differ by a KL above 0.015.

    Args:
        history: metrics rows, oldest first; rows without training (step 0) are skipped.
        max_turns: N_max.
        success: column of the task's measure of success; where a row does not have it, ``reward_flat`` is not raised.

    >>> step = {"reward_total": 0.0, "answer_correct": 0.0, "grad_norm": 1.0, "turns_mean": 1.0}
    >>> [collapse_flags([step] * n, max_turns=4, success="answer_correct") for n in (5, 4)]
    [('reward_flat',), ()]
    """
    rows = [row for row in history if row.get("reward_total") is not None]
    if not rows:
        return ()

    def last(name: str) -> list[float]:
        values = [row.get(name) for row in rows[-WINDOW:]]
        return [v for v in values if isinstance(v, int | float)]

    def lasting(name: str) -> list[float]:
        """The window's values; empty while the window is not full."""
        return values if len(values := last(name)) == WINDOW else []

    flags = []
    if ((reward := lasting("reward_total")) and max(reward) - min(reward) < 1e-9
            and (solved := lasting(success)) and max(solved) == 0):
        flags.append("reward_flat")
    if (norms := lasting("grad_norm")) and max(norms) < 1e-6:
        flags.append("zero_gradient")
    if (silent := lasting("zero_std_groups")) and min(silent) == 1:
        flags.append("no_contrast")
    if lasting("tokens_sampled") and _episode_tokens(rows[-WINDOW:]) > 3 * _episode_tokens(rows[:WINDOW]):
        flags.append("length_explosion")
    if ((turns := lasting("turns_mean")) and min(turns) > max_turns - 0.05
            and max(lasting("stop_answered"), default=1.0) < 0.5):
        flags.append("searches_pinned")
    if (turns := lasting("turns_mean")) and max(turns) < 1.05 and _mean_turns(rows[:WINDOW]) >= 1.5:
        flags.append("single_turn")
    if form := lasting("format_correct"):
        best = max(value for row in rows if isinstance(value := row.get("format_correct"), int | float))
        if best > 0.3 and max(form) < 0.1 * best:
            flags.append("format_lost")
        if best <= NEVER:
            flags.append("format_never_right")
    if (drift := last("sampler_trainer_kl")) and drift[-1] > SAMPLER_TRAINER_KL_GATE:
        flags.append("sampler_drift")
    return tuple(flags)


def _mean_turns(rows: Sequence[MetricsRow]) -> float:
    return sum(float(row.get("turns_mean") or 0) for row in rows) / len(rows)


def _episode_tokens(rows: Sequence[MetricsRow]) -> float:
    """Mean sampled tokens of a trajectory over some steps."""
    def total(name: str) -> float:
        return sum(float(row[name] or 0) for row in rows)
    return total("tokens_sampled") / max(total("trajectories"), 1.0)
