"""Builds each table from results: one pure function for each name in ``catalogue.TABLES``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from turncredit.config.algorithm import Algorithm
from turncredit.config.load import Scale
from turncredit.errors import ConfigError, nearest
from turncredit.reporting import statistics
from turncredit.reporting.claim_scores import collapsed
from turncredit.reporting.comparability import comparability
from turncredit.reporting.placement_effects import contrasts, placement_arms
from turncredit.reporting.reported import Reported, Value
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import METRIC_LABELS, ArmRuns, Results, run_counts, sources
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.render import NOT_REPORTED, NOT_RUN, Block, Cell, Table, TableRow, mark_best
from turncredit.tasks.search.config import SearchRewards

Build = Callable[[Results, Reported], Table]

POLICIES = {"initial": "initial policy", "closed_book": "initial policy, without retriever",
            "expert": "expert policy, the ceiling"}
_TABLE5 = ("component_tool_execution", "component_search_answer", "component_xml_format", "component_exact_match")


def tabulate(name: str, runs: Mapping[str, Runs], scale: Scale, reported: Reported) -> Table:
    """Build the table ``name``. Cells without runs say "not run".

    Raises:
        ConfigError: no such table.
        DataError: the runs' files lack a metric or data set.
    """
    if name not in BUILDERS:
        raise ConfigError(f"no table {name!r}", nearest(name, BUILDERS))
    return BUILDERS[name](Results(scale, runs), reported)


def provenance(results: Results, all_runs: Iterable[ArmRuns | None]) -> tuple[str, ...]:
    """The notes under every table of ours: scale, origin of the runs, seeds, intervals, comparability."""
    arms = [arm for arm in all_runs if arm is not None]
    notes = [f"Ours: scale {results.scale.name}, runs: {sources(arms)}, {run_counts(arms)} of each arm; greedy "
             "decoding; mean over seeds [95% bootstrap interval over seeds]"]
    if any(1 < len(arm.runs) < 5 for arm in arms):
        notes.append("With fewer than 5 seeds an arm's interval is the whole range of its resamples, and still "
                     "contains the true mean in only about 3 of 4 cases")
    return (*notes, comparability(results.scale))


def _table1(results: Results, reported: Reported) -> Table:
    rows = tuple(
        TableRow(name, tuple(Cell(text=word) for word in granularity(algorithm)), f"{algorithm.content} content")
        for name, algorithm in results.scale.algorithms.items())
    paper = tuple(TableRow(method, (Cell(text=reward), Cell(text=advantage)))
                  for method, reward, advantage in reported.granularity)
    columns = ("reward", "advantage")
    return Table("table1_granularity", "Granularity of rewards and advantages (Table 1)", (
        Block("This project, from config/algorithms.yaml", "algorithm", columns, rows, "which components count"),
        Block("The paper", "method", columns, paper)))


def granularity(algorithm: Algorithm) -> tuple[str, str]:
    """Granularity of an algorithm's rewards and of its advantages.

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
        arms = {arm: results.arm("search", arm) for arm in results.arm_names("search")}
        public = {name: checkpoint.label for name, checkpoint in scale.checkpoints.items()
                  if checkpoint.experiment == "search"}
        labels = {kind: label for kind, label in (POLICIES | public).items() if kind != "expert" or scale.warm_start}
        rows = [_score_row(label, results.untrained(kind, "search"), metric, results.datasets)
                for kind, label in labels.items()]
        rows += [_score_row(arm, runs, metric, results.datasets) for arm, runs in arms.items()]
        return Table(name, f"{words} on the test sets (Table 2)", (
            Block("Ours", "arm", columns, mark_best(rows, among=list(arms)), "seeds, runs"),
            _reported_block(reported, "Table 2", metric, "Reported by the paper (v2), Qwen2.5-7B")),
            ("† in-domain, * out-of-domain, ‡ copied by the paper from an earlier paper; bold: largest mean of the "
             "trained arms", *provenance(results, arms.values())))
    return build


def _table5(results: Results, reported: Reported) -> Table:
    columns = tuple(METRIC_LABELS[metric] for metric in _TABLE5)
    arms = {arm: results.arm("two_turn", arm) for arm in results.arm_names("two_turn")}
    shown = {POLICIES[kind]: results.untrained(kind, "two_turn") for kind in ("initial", "expert")} | arms
    trained = results.scale.experiments["two_turn"].train_on if "two_turn" in results.scale.experiments else ()
    blocks = []
    evaluated = results.scale.evaluated("two_turn") if trained else ()
    others = tuple(d for d in results.scale.out_of_domain if d in evaluated)
    for title, datasets in (("in-domain", trained), ("out-of-domain", others))[:1 + bool(others)]:
        rows = [_metrics_row(label, runs, _TABLE5, datasets) for label, runs in shown.items()]
        blocks.append(Block(f"Ours, {title} ({', '.join(datasets)})", "arm", columns, mark_best(rows, among=list(arms)),
                            "seeds, runs"))
    values = reported.table("Table 5")
    rows = [TableRow(method, tuple(_reported_cell(values, method, "metric", metric, digits=4) for metric in _TABLE5))
            for method in dict.fromkeys(v.method for v in values)]
    blocks.append(Block("Reported by the paper (v2), TriviaQA validation, Qwen2.5-7B", "method", columns,
                        mark_best(rows, among=[row.label for row in rows])))
    return Table("table5_two_turn", "Reward components of the two-turn study (Table 5)", tuple(blocks),
                 ("Bold: largest mean of the trained arms", *_one_call(results),
                  *provenance(results, arms.values())))


def _one_call(results: Results) -> tuple[str, ...]:
    """A note on test sets that need more hops than the two-turn agent's single call; empty if there are none."""
    expert = results.untrained("expert", "two_turn")
    if expert is None:
        return ()
    hops = expert.evaluation.groupby("dataset")["hops"].min()
    beyond = [dataset for dataset in results.datasets if hops.get(dataset, 1) > 1]
    return (f"One call can answer one-hop questions only, so not {', '.join(beyond)}",) if beyond else ()


def _summary(results: Results, reported: Reported) -> Table:
    arms = {arm: results.arm("search", arm) for arm in results.arm_names("search")}
    best = arms.get("MT-PPO")
    scale = results.scale
    columns = ("exact match, IQM", "in-domain", "out-of-domain", "F1", "retrieval", "searches", "collapsed seeds",
               "chance that MT-PPO is better")
    rows = []
    for arm, runs in arms.items():
        if runs is None:
            rows.append(TableRow(arm, (Cell(text=NOT_RUN),) * len(columns), ""))
            continue
        everything = runs.final("answer_correct", results.datasets)
        better = Cell(text="-") if best is None or arm == "MT-PPO" else Cell(
            statistics.probability_of_improvement(best.final("answer_correct", results.datasets), everything), digits=2)
        rows.append(TableRow(arm, (
            Cell(statistics.iqm(everything)), _mean(runs, "answer_correct", scale.in_domain),
            _mean(runs, "answer_correct", scale.out_of_domain), _mean(runs, "f1", results.datasets),
            _mean(runs, "retrieval_correct", results.datasets), _mean(runs, "searches", results.datasets, digits=2),
            Cell(text=_collapsed(runs, scale.in_domain)), better), _remark(runs)))
    return Table("search_summary", "Further metrics of the six arms of search", (
        Block("Ours", "arm", columns, tuple(rows), "seeds, runs"),), (
        "IQM: interquartile mean over seeds; the chance is over pairs of runs and data sets, ties count half",
        "Collapsed: validation exact match ended below half of its best and at least 0.1 below it; collapsed seeds "
        "stay in every mean", *provenance(results, arms.values())))


def _ablation(results: Results, reported: Reported) -> Table:
    metrics = ("answer_correct", "format_correct", "retrieval_correct", "turns", "searches", "turn_limit")
    columns = tuple(METRIC_LABELS[metric] for metric in metrics)
    names = results.arm_names("ablation")
    arms = {arm: results.arm("ablation", arm) for arm in names}
    rows = [_metrics_row(_settings(results.scale, arm), runs, metrics, results.datasets)
            for arm, runs in arms.items()]
    reference = next(iter(names), "")
    base = arms.get(reference)
    gaps = []
    for arm, runs in arms.items():
        if arm != reference:
            cells = tuple(Cell(text=NOT_RUN) if runs is None or base is None else Cell(statistics.difference(
                runs.final(metric, results.datasets), base.final(metric, results.datasets))) for metric in metrics)
            gaps.append(TableRow(f"{arm} minus {reference}", cells))
    return Table("ablation", "Search cost and turn limit of MT-PPO, over all test sets (Fig. 4)", (
        Block("Ours", "arm", columns, tuple(rows), "seeds, runs"),
        Block("Ours, differences", "arm", columns, tuple(gaps))),
        ("The paper prints no numbers for these", *provenance(results, arms.values())))


def _placement(results: Results, reported: Reported) -> Table:
    arms = placement_arms(results)
    blocks = []
    for metric in ("answer_correct", "format_correct"):
        effect = {name: _optional(estimate) for name, estimate in contrasts(results, metric).items()}
        rows = [TableRow(content, (*(_mean(arms.get((content, placement)), metric, results.datasets)
                                for placement in ("delayed", "per_turn")), effect[f"placement, content {content}"]))
                for content in ("retrieval", "full")]
        rows.append(TableRow("full minus retrieval", (effect["content, placement delayed"],
                                             effect["content, placement per-turn"], effect["interaction"])))
        word = METRIC_LABELS[metric]
        blocks.append(Block(f"Ours, {word}", "content", ("delayed", "per-turn", "per-turn minus delayed"), tuple(rows)))
        others = ("placement, mean of both", "content, mean of both", "interaction", "both at once")
        blocks.append(Block(f"Ours, effects on {word}", "effect", ("difference",),
                            tuple(TableRow(name, (effect[name],)) for name in others)))
    title = "Placement and content of the reward, critic baseline, over all test sets"
    return Table("placement", title, tuple(blocks), (
        "From PPO-MR to MT-PPO the paper changes content (merged to full) and placement (delayed to per-turn) together",
        "Content merged is one number at the end, so no placement changes it: content retrieval takes its place here",
        *provenance(results, arms.values())))


BUILDERS: dict[str, Build] = {  # catalogue.TABLES says which experiments each reads
    "table1_granularity": _table1,
    "table2_answer": _table2("answer_correct", "table2_answer"),
    "table2_format": _table2("format_correct", "table2_format"),
    "table5_two_turn": _table5,
    "search_summary": _summary,
    "ablation": _ablation,
    "placement": _placement,
}


def _mean(runs: ArmRuns | None, metric: str, datasets: Sequence[str], digits: int = 3) -> Cell:
    return Cell(text=NOT_RUN) if runs is None else Cell(statistics.mean(runs.final(metric, datasets)), digits=digits)


def _optional(estimate: Estimate | None) -> Cell:
    return Cell(text=NOT_RUN) if estimate is None else Cell(estimate)


def _remark(runs: ArmRuns | None) -> str:
    return "" if runs is None else f"{len(runs.runs)}, {runs.source}"


def _score_row(label: str, runs: ArmRuns | None, metric: str, datasets: Sequence[str]) -> TableRow:
    """One metric: a cell for each data set, then their mean."""
    cells = (*(_mean(runs, metric, [d]) for d in datasets), _mean(runs, metric, datasets))
    return TableRow(label, cells, _remark(runs))


def _metrics_row(label: str, runs: ArmRuns | None, metrics: Sequence[str], datasets: Sequence[str]) -> TableRow:
    """A cell for each metric, averaged over the data sets."""
    return TableRow(label, tuple(_mean(runs, metric, datasets) for metric in metrics), _remark(runs))


def _settings(scale: Scale, arm: str) -> str:
    run = scale.run("ablation", arm, 0)
    cost = f"λ_s {run.rewards.search_cost:g}, " if isinstance(run.rewards, SearchRewards) else ""
    return f"{arm} ({cost}N_max {run.task.max_turns})"


def _collapsed(runs: ArmRuns, datasets: Sequence[str]) -> str:
    if runs.metrics.empty:
        return "?"
    return f"{int(collapsed(runs, 'answer_correct', datasets).sum())} of {len(runs.runs)}"


def _reported_block(reported: Reported, place: str, metric: str, title: str) -> Block:
    values = reported.table(place, metric)
    datasets = list(dict.fromkeys(v.dataset for v in values))
    columns = tuple("average" if d == "Average" else d + reported.datasets[d].mark for d in datasets)
    rows = []
    for method in dict.fromkeys(v.method for v in reported.table(place)):
        copied = any("copied" in v.note for v in values if v.method == method)
        cells = tuple(_reported_cell(values, method, "dataset", dataset) for dataset in datasets)
        rows.append(TableRow(method + ("‡" if copied else ""), cells))
    return Block(title, "method", columns, mark_best(rows, among=[row.label for row in rows]))


def _reported_cell(values: Sequence[Value], method: str, by: str, key: str, digits: int = 3) -> Cell:
    for value in values:
        if value.method == method and getattr(value, by) == key and value.value is not None:
            return Cell(Estimate(value.value, None, None, ()), digits=digits)
    return Cell(text=NOT_REPORTED)
