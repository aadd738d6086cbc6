"""The paper's tables and ours: pure functions from results to ``Table``, by their names in ``pages``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from turncredit.config.algorithm import Algorithm, Content
from turncredit.config.load import Scale
from turncredit.config.task import SearchRewards
from turncredit.credit.registry import Placement
from turncredit.errors import ConfigError, nearest
from turncredit.reporting import statistics
from turncredit.reporting.claims import collapsed
from turncredit.reporting.comparability import comparability
from turncredit.reporting.render import NOT_REPORTED, NOT_RUN, Block, Cell, Row, Table, mark_best
from turncredit.reporting.reported import Reported, Value
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import ArmRuns, Results, seed_counts, sources
from turncredit.reporting.statistics import Estimate

Build = Callable[[Results, Reported], Table]

METRIC_WORDS = {
    "answer_correct": "exact match", "format_correct": "format", "retrieval_correct": "retrieval", "f1": "F1",
    "turns": "turns", "searches": "searches", "turn_limit": "ended at N_max",
    "component_tool_execution": "tool execution (0-0.2)", "component_search_answer": "answer in result (0-0.5)",
    "component_xml_format": "XML format (0-0.2)", "component_exact_match": "exact match (0-1)"}
POLICIES = {"base": "base policy, untrained", "closed_book": "base policy, without retriever",
            "clean": "clean policy, the ceiling"}
_TABLE5 = ("component_tool_execution", "component_search_answer", "component_xml_format", "component_exact_match")


def tabulate(name: str, runs: Mapping[str, Runs], scale: Scale, reported: Reported) -> Table:
    """Build the table ``name``. What was not run is shown as not run.

    Raises:
        ConfigError: no such table.
        DataError: a metric or data set that the runs' files lack.
    """
    if name not in BUILDERS:
        raise ConfigError(f"no table {name!r}", nearest(name, BUILDERS))
    return BUILDERS[name](Results(scale, runs), reported)


def provenance(results: Results, found: Iterable[ArmRuns | None]) -> tuple[str, ...]:
    """Notes that every table of ours ends with: scale, seeds, whose runs, what the interval is."""
    arms = [arm for arm in found if arm is not None]
    notes = [f"Ours: scale {results.scale.name}, runs: {sources(arms)}, seeds: {seed_counts(arms)}; greedy decoding; "
             "mean over seeds [95% bootstrap interval over seeds]"]
    if any(1 < len(arm.seeds) < 5 for arm in arms):
        notes.append("With fewer than 5 seeds an arm's interval is the whole range of its resamples, and still holds "
                     "its true mean in only about 3 of 4 cases")
    return (*notes, comparability(results.scale))


def _table1(results: Results, reported: Reported) -> Table:
    rows = tuple(Row(name, tuple(Cell(text=word) for word in granularity(algorithm)), f"{algorithm.content} content")
                 for name, algorithm in results.scale.algorithms.items())
    paper = tuple(Row(method, (Cell(text=reward), Cell(text=advantage)))
                  for method, reward, advantage in reported.granularity)
    columns = ("reward", "advantage")
    return Table("table1_granularity", "Granularity of rewards and advantages (Table 1)", (
        Block("This project, from config/algorithms.yaml", "algorithm", columns, rows, "which components count"),
        Block("The paper", "method", columns, paper)))


def granularity(algorithm: Algorithm) -> tuple[str, str]:
    """What one reward and one advantage of an algorithm belong to.

    >>> granularity(Algorithm(estimator="group", placement="per_turn", content="full", rollout="tree"))
    ('turn', 'turn')
    """
    reward = "turn" if algorithm.placement == "per_turn" else "trajectory"
    return reward, "token" if algorithm.estimator == "critic" else reward


def _table2(metric: str, name: str) -> Callable[[Results, Reported], Table]:
    words = {"answer_correct": "Answer correctness (exact match)", "format_correct": "Format correctness"}[metric]

    def build(results: Results, reported: Reported) -> Table:
        scale = results.scale
        columns = (*(f"{d}†" for d in scale.in_domain), *(f"{d}*" for d in scale.out_of_domain), "average")
        arms = {arm: results.arm("search", arm) for arm in _arms(results, "search")}
        public = {name: found.label for name, found in scale.checkpoints.items() if found.experiment == "search"}
        labels = {kind: label for kind, label in (POLICIES | public).items() if kind != "clean" or scale.warm_start}
        rows = [_score_row(label, results.base(kind, "search"), metric, results.datasets)
                for kind, label in labels.items()]
        rows += [_score_row(arm, found, metric, results.datasets) for arm, found in arms.items()]
        return Table(name, f"{words} on the test sets (Table 2)", (
            Block("Ours", "arm", columns, mark_best(rows, among=list(arms)), "seeds, runs"),
            _reported_block(reported, "Table 2", metric, "Reported by the paper (v2), Qwen2.5-7B")),
            ("† in-domain, * out-of-domain, ‡ copied by the paper from an earlier paper; the largest mean of the "
             "trained arms is bold", *provenance(results, arms.values())))
    return build


def _table5(results: Results, reported: Reported) -> Table:
    columns = tuple(METRIC_WORDS[metric] for metric in _TABLE5)
    arms = {arm: results.arm("two_turn", arm) for arm in _arms(results, "two_turn")}
    shown = {POLICIES[kind]: results.base(kind, "two_turn") for kind in ("base", "clean")} | arms
    trained = results.scale.experiments["two_turn"].train_on if "two_turn" in results.scale.experiments else ()
    blocks = []
    evaluated = results.scale.evaluated("two_turn") if trained else ()
    others = tuple(d for d in results.scale.out_of_domain if d in evaluated)
    for title, datasets in (("in-domain", trained), ("out-of-domain", others))[:1 + bool(others)]:
        rows = [_metrics_row(label, found, _TABLE5, datasets) for label, found in shown.items()]
        blocks.append(Block(f"Ours, {title} ({', '.join(datasets)})", "arm", columns, mark_best(rows, among=list(arms)),
                            "seeds, runs"))
    values = reported.table("Table 5")
    rows = [Row(method, tuple(_reported_cell(values, method, "metric", metric, digits=4) for metric in _TABLE5))
            for method in dict.fromkeys(v.method for v in values)]
    blocks.append(Block("Reported by the paper (v2), TriviaQA validation, Qwen2.5-7B", "method", columns,
                        mark_best(rows, among=[row.label for row in rows])))
    return Table("table5_two_turn", "Reward components of the two-turn study (Table 5)", tuple(blocks),
                 ("The largest mean of the trained arms is bold", *_one_call(results),
                  *provenance(results, arms.values())))


def _one_call(results: Results) -> tuple[str, ...]:
    """Which test sets the two-turn agent cannot answer, as far as the runs tell."""
    base = results.base("clean", "two_turn")
    if base is None:
        return ()
    hops = base.evaluation.groupby("dataset")["hops"].min()
    beyond = [dataset for dataset in results.datasets if hops.get(dataset, 1) > 1]
    return (f"One call answers questions of one hop: {', '.join(beyond)} are beyond it",) if beyond else ()


def _summary(results: Results, reported: Reported) -> Table:
    arms = {arm: results.arm("search", arm) for arm in _arms(results, "search")}
    best = arms.get("MT-PPO")
    scale = results.scale
    columns = ("exact match, IQM", "in-domain", "out-of-domain", "F1", "retrieval", "searches", "collapsed seeds",
               "chance that MT-PPO is better")
    rows = []
    for arm, found in arms.items():
        if found is None:
            rows.append(Row(arm, (Cell(text=NOT_RUN),) * len(columns), ""))
            continue
        everything = found.final("answer_correct", results.datasets)
        better = Cell(text="-") if best is None or arm == "MT-PPO" else Cell(
            statistics.probability_of_improvement(best.final("answer_correct", results.datasets), everything), digits=2)
        rows.append(Row(arm, (
            Cell(statistics.iqm(everything)), _mean(found, "answer_correct", scale.in_domain),
            _mean(found, "answer_correct", scale.out_of_domain), _mean(found, "f1", results.datasets),
            _mean(found, "retrieval_correct", results.datasets), _mean(found, "searches", results.datasets, digits=2),
            Cell(text=_collapsed(found, scale.in_domain)), better), _remark(found)))
    return Table("search_summary", "The six arms of search in other numbers", (
        Block("Ours", "arm", columns, tuple(rows), "seeds, runs"),), (
        "IQM: interquartile mean over seeds; the chance is over pairs of runs and data sets, ties counted half",
        "Collapsed: validation exact match ended below half of its best and at least 0.1 below it; such seeds stay in "
        "every mean", *provenance(results, arms.values())))


def _ablation(results: Results, reported: Reported) -> Table:
    metrics = ("answer_correct", "format_correct", "retrieval_correct", "turns", "searches", "turn_limit")
    columns = tuple(METRIC_WORDS[metric] for metric in metrics)
    names = _arms(results, "ablation")
    arms = {arm: results.arm("ablation", arm) for arm in names}
    rows = [_metrics_row(_settings(results.scale, arm), found, metrics, results.datasets)
            for arm, found in arms.items()]
    reference = next(iter(names), "")
    base = arms.get(reference)
    gaps = []
    for arm, found in arms.items():
        if arm != reference:
            cells = tuple(Cell(text=NOT_RUN) if found is None or base is None else Cell(statistics.difference(
                found.final(metric, results.datasets), base.final(metric, results.datasets))) for metric in metrics)
            gaps.append(Row(f"{arm} less {reference}", cells))
    return Table("ablation", "Search cost and turn limit of MT-PPO, over all test sets (Fig. 4)", (
        Block("Ours", "arm", columns, tuple(rows), "seeds, runs"),
        Block("Ours, differences", "arm", columns, tuple(gaps))),
        ("The paper prints no number for these", *provenance(results, arms.values())))


def placement_arms(results: Results) -> dict[tuple[Content, Placement], ArmRuns | None]:
    """The arms of the placement experiment by what they are, not by their names."""
    found: dict[tuple[Content, Placement], ArmRuns | None] = {}
    for arm in _arms(results, "placement"):
        algorithm = results.scale.run("placement", arm, 0).algorithm
        found[algorithm.content, algorithm.placement] = results.arm("placement", arm)
    return found


def contrasts(results: Results, metric: str) -> dict[str, Estimate | None]:
    """Effects of placement and content on a final metric over all data sets; None where an arm lacks.

    With m = merged, f = full content, d = delayed, p = per-turn placement.
    """
    weights: dict[str, dict[str, float]] = {
        "placement, content merged": {"mp": 1, "md": -1}, "placement, content full": {"fp": 1, "fd": -1},
        "content, placement delayed": {"fd": 1, "md": -1}, "content, placement per-turn": {"fp": 1, "mp": -1},
        "placement, mean of both": {"mp": .5, "md": -.5, "fp": .5, "fd": -.5},
        "content, mean of both": {"fd": .5, "md": -.5, "fp": .5, "mp": -.5},
        "interaction": {"fp": 1, "fd": -1, "mp": -1, "md": 1}, "both at once, as in the paper": {"fp": 1, "md": -1}}
    arms = placement_arms(results)
    cells = {"md": arms.get(("merged", "delayed")), "mp": arms.get(("merged", "per_turn")),
             "fd": arms.get(("full", "delayed")), "fp": arms.get(("full", "per_turn"))}
    samples = {key: found.final(metric, results.datasets) for key, found in cells.items() if found is not None}
    return {name: statistics.contrast([samples[key] for key in weight], list(weight.values()))
            if weight.keys() <= samples.keys() else None for name, weight in weights.items()}


def _placement(results: Results, reported: Reported) -> Table:
    arms = placement_arms(results)
    blocks = []
    for metric in ("answer_correct", "format_correct"):
        effect = {name: _optional(found) for name, found in contrasts(results, metric).items()}
        rows = [Row(content, (*(_mean(arms.get((content, placement)), metric, results.datasets)
                                for placement in ("delayed", "per_turn")), effect[f"placement, content {content}"]))
                for content in ("merged", "full")]
        rows.append(Row("full less merged", (effect["content, placement delayed"],
                                             effect["content, placement per-turn"], effect["interaction"])))
        word = METRIC_WORDS[metric]
        blocks.append(Block(f"Ours, {word}", "content", ("delayed", "per-turn", "per-turn less delayed"), tuple(rows)))
        others = ("placement, mean of both", "content, mean of both", "interaction", "both at once, as in the paper")
        blocks.append(Block(f"Ours, effects on {word}", "effect", ("difference",),
                            tuple(Row(name, (effect[name],)) for name in others)))
    title = "Placement and content of the reward, critic baseline, over all test sets"
    return Table("placement", title, tuple(blocks), (
        "The paper moves content (merged to full) and placement (delayed to per-turn) together, from PPO-MR to MT-PPO",
        *provenance(results, arms.values())))


BUILDERS: dict[str, Build] = {  # which experiments each reads: pages.TABLES
    "table1_granularity": _table1,
    "table2_answer": _table2("answer_correct", "table2_answer"),
    "table2_format": _table2("format_correct", "table2_format"),
    "table5_two_turn": _table5,
    "search_summary": _summary,
    "ablation": _ablation,
    "placement": _placement,
}


def _arms(results: Results, experiment: str) -> tuple[str, ...]:
    """An experiment's arms in the configuration's order; none if the scale lacks it."""
    return tuple(results.scale.experiments[experiment].arms) if experiment in results.scale.experiments else ()


def _mean(found: ArmRuns | None, metric: str, datasets: Sequence[str], digits: int = 3) -> Cell:
    return Cell(text=NOT_RUN) if found is None else Cell(statistics.mean(found.final(metric, datasets)), digits=digits)


def _optional(found: Estimate | None) -> Cell:
    return Cell(text=NOT_RUN) if found is None else Cell(found)


def _remark(found: ArmRuns | None) -> str:
    return "" if found is None else f"{len(found.seeds)}, {found.source}"


def _score_row(label: str, found: ArmRuns | None, metric: str, datasets: Sequence[str]) -> Row:
    """One metric, a cell for each data set and one for their mean."""
    return Row(label, (*(_mean(found, metric, [d]) for d in datasets), _mean(found, metric, datasets)), _remark(found))


def _metrics_row(label: str, found: ArmRuns | None, metrics: Sequence[str], datasets: Sequence[str]) -> Row:
    """A cell for each metric, over the data sets together."""
    return Row(label, tuple(_mean(found, metric, datasets) for metric in metrics), _remark(found))


def _settings(scale: Scale, arm: str) -> str:
    run = scale.run("ablation", arm, 0)
    cost = f"λ_s {run.rewards.search_cost:g}, " if isinstance(run.rewards, SearchRewards) else ""
    return f"{arm} ({cost}N_max {run.task.max_turns})"


def _collapsed(found: ArmRuns, datasets: Sequence[str]) -> str:
    if found.metrics.empty:
        return "?"
    return f"{int(collapsed(found, 'answer_correct', datasets).sum())} of {len(found.seeds)}"


def _reported_block(reported: Reported, place: str, metric: str, title: str) -> Block:
    values = reported.table(place, metric)
    datasets = list(dict.fromkeys(v.dataset for v in values))
    columns = tuple("average" if d == "Average" else d + reported.datasets[d].mark for d in datasets)
    rows = []
    for method in dict.fromkeys(v.method for v in reported.table(place)):
        copied = any("copied" in v.note for v in values if v.method == method)
        cells = tuple(_reported_cell(values, method, "dataset", dataset) for dataset in datasets)
        rows.append(Row(method + ("‡" if copied else ""), cells))
    return Block(title, "method", columns, mark_best(rows, among=[row.label for row in rows]))


def _reported_cell(values: Sequence[Value], method: str, by: str, key: str, digits: int = 3) -> Cell:
    for value in values:
        if value.method == method and getattr(value, by) == key and value.value is not None:
            return Cell(Estimate(value.value, None, None, ()), digits=digits)
    return Cell(text=NOT_REPORTED)
