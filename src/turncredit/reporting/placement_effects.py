"""Effects of reward placement and reward content on final scores: contrasts of the four arms of `placement`."""

from __future__ import annotations

from turncredit.reporting import statistics
from turncredit.reporting.scores import ArmRuns, Results
from turncredit.reporting.statistics import Estimate

_RETRIEVAL_DELAYED, _RETRIEVAL_PER_TURN = ("retrieval", "delayed"), ("retrieval", "per_turn")  # (content, placement)
_FULL_DELAYED, _FULL_PER_TURN = ("full", "delayed"), ("full", "per_turn")
_WEIGHTS: dict[str, dict[tuple[str, str], float]] = {
    "placement, content retrieval": {_RETRIEVAL_PER_TURN: 1, _RETRIEVAL_DELAYED: -1},
    "placement, content full": {_FULL_PER_TURN: 1, _FULL_DELAYED: -1},
    "content, placement delayed": {_FULL_DELAYED: 1, _RETRIEVAL_DELAYED: -1},
    "content, placement per-turn": {_FULL_PER_TURN: 1, _RETRIEVAL_PER_TURN: -1},
    "placement, mean of both": {
        _RETRIEVAL_PER_TURN: .5, _RETRIEVAL_DELAYED: -.5, _FULL_PER_TURN: .5, _FULL_DELAYED: -.5},
    "content, mean of both": {
        _FULL_DELAYED: .5, _RETRIEVAL_DELAYED: -.5, _FULL_PER_TURN: .5, _RETRIEVAL_PER_TURN: -.5},
    "interaction": {_FULL_PER_TURN: 1, _FULL_DELAYED: -1, _RETRIEVAL_PER_TURN: -1, _RETRIEVAL_DELAYED: 1},
    "both at once": {_FULL_PER_TURN: 1, _RETRIEVAL_DELAYED: -1}}


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
    samples = {levels: arm.final(metric, results.datasets)
               for levels, arm in placement_arms(results).items() if arm is not None}
    return {name: statistics.contrast([samples[key] for key in weight], list(weight.values()))
            if weight.keys() <= samples.keys() else None for name, weight in _WEIGHTS.items()}
