"""Effects of reward placement and reward content on final scores: contrasts of the four arms of `placement`."""

from __future__ import annotations

from turncredit.reporting import statistics
from turncredit.reporting.scores import ArmRuns, Results
from turncredit.reporting.statistics import Estimate

_WEIGHTS: dict[str, dict[str, float]] = {  # m: merged content, f: full content; d: delayed, p: per-turn placement
    "placement, content merged": {"mp": 1, "md": -1}, "placement, content full": {"fp": 1, "fd": -1},
    "content, placement delayed": {"fd": 1, "md": -1}, "content, placement per-turn": {"fp": 1, "mp": -1},
    "placement, mean of both": {"mp": .5, "md": -.5, "fp": .5, "fd": -.5},
    "content, mean of both": {"fd": .5, "md": -.5, "fp": .5, "mp": -.5},
    "interaction": {"fp": 1, "fd": -1, "mp": -1, "md": 1}, "both at once, as in the paper": {"fp": 1, "md": -1}}


def placement_arms(results: Results) -> dict[tuple[str, str], ArmRuns | None]:
    """The runs of the experiment ``placement`` by the content and placement of each arm; None where not run."""
    arms: dict[tuple[str, str], ArmRuns | None] = {}
    for arm in results.arm_names("placement"):
        algorithm = results.scale.run("placement", arm, 0).algorithm
        arms[algorithm.content, algorithm.placement] = results.arm("placement", arm)
    return arms


def contrasts(results: Results, metric: str) -> dict[str, Estimate | None]:
    """Effects on a final metric, averaged over all data sets; None where an arm was not run.

    Raises:
        DataError: the evaluations have no such metric.
    """
    arms = placement_arms(results)
    cells = {"md": arms.get(("merged", "delayed")), "mp": arms.get(("merged", "per_turn")),
             "fd": arms.get(("full", "delayed")), "fp": arms.get(("full", "per_turn"))}
    samples = {key: arm.final(metric, results.datasets) for key, arm in cells.items() if arm is not None}
    return {name: statistics.contrast([samples[key] for key in weight], list(weight.values()))
            if weight.keys() <= samples.keys() else None for name, weight in _WEIGHTS.items()}
