"""Builds each table from results: one pure function for each name in ``catalogue.TABLES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from turncredit.config.algorithm import Algorithm
from turncredit.config.load import Scale
from turncredit.errors import ConfigError, nearest
from turncredit.reporting import samples
from turncredit.reporting.arm_labels import arm_labels
from turncredit.reporting.claim_scores import collapsed
from turncredit.reporting.reported import Reported, Value
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import METRIC_LABELS, ArmRuns, Results
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.budget import budget
from turncredit.reporting.tables.outcomes import effects_table, outcomes_table
from turncredit.reporting.tables.parts import BOLD, mean_cell, provenance, remark
from turncredit.reporting.tables.render import NOT_REPORTED, NOT_RUN, Block, Cell, Table, TableRow, embolden

Build = Callable[[Results, Reported], Table]

POLICIES = {"initial": "initial policy", "closed_book": "initial policy, without retriever",
            "expert": "expert policy, trained on demonstrations"}
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
            Block("Ours", "arm", columns, embolden(rows, _winners(arms, [
                (metric, [d]) for d in results.datasets] + [(metric, results.datasets)])), "runs"),
            _reported_block(reported, "Table 2", metric, "Reported by the paper (v2), Qwen2.5-7B")),
            ("† in-domain, * out-of-domain, ‡ copied by the paper from an earlier paper", BOLD,
             "The expert policy is trained on correct demonstrations; an arm may be better",
             *provenance(results, arms.values())))
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
        blocks.append(Block(f"Ours, {title} ({', '.join(datasets)})", "arm", columns, embolden(
            rows, _winners(arms, [(metric, datasets) for metric in _TABLE5])), "runs"))
    values = reported.table("Table 5")
    rows = [TableRow(method, tuple(_reported_cell(values, method, "metric", metric, digits=4) for metric in _TABLE5))
            for method in dict.fromkeys(v.method for v in values)]
    blocks.append(Block("Reported by the paper (v2), TriviaQA validation, Qwen2.5-7B", "method", columns,
                        tuple(rows)))
    return Table("table5_two_turn", "Reward components of the two-turn study (Table 5)", tuple(blocks),
                 (BOLD, *_one_call(results),
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
    inside = results.scale.in_domain
    columns = ("exact match, IQM", "F1", "retrieval", "ended at N_max", "collapsed runs",
               "chance that MT-PPO is better")
    rows = []
    for arm, runs in arms.items():
        if runs is None:
            rows.append(TableRow(arm, (Cell(text=NOT_RUN),) * len(columns), ""))
            continue
        scores = samples.final(runs, "answer_correct", inside)
        better = Cell(text="-") if best is None or arm == "MT-PPO" else Cell(samples.probability_of_improvement(
            samples.final(best, "answer_correct", inside), scores), digits=2)
        rows.append(TableRow(arm, (
            Cell(samples.iqm(scores)), *(mean_cell(runs, metric, inside) for metric in (
                "f1", "retrieval_correct", "turn_limit")), Cell(text=_collapsed(runs, inside)), better), remark(runs)))
    return Table("search_summary", f"Further metrics of the arms of search, on {', '.join(inside)}", (
        Block("Ours", "arm", columns, tuple(rows), "runs"),), (
        "IQM: interquartile mean over runs; the chance is over pairs of runs and data sets, ties count half",
        "Collapsed: validation exact match ended below half of its best and at least 0.1 below it; collapsed runs "
        "stay in every mean", *provenance(results, arms.values())))


def _ablation(results: Results, reported: Reported) -> Table:
    metrics = ("answer_correct", "format_correct", "retrieval_correct", "turns", "searches", "turn_limit")
    columns = tuple(METRIC_LABELS[metric] for metric in metrics)
    labels = arm_labels(results.scale, "ablation")
    arms = {arm: results.arm("ablation", arm) for arm in results.arm_names("ablation")}
    rows = [_metrics_row(labels[arm], runs, metrics, results.datasets) for arm, runs in arms.items()]
    reference = next(iter(arms), "")
    base = arms.get(reference)
    gaps = []
    for arm, runs in arms.items():
        if arm != reference:
            cells = tuple(Cell(text=NOT_RUN) if runs is None or base is None else Cell(samples.difference(
                samples.final(runs, metric, results.datasets), samples.final(base, metric, results.datasets)))
                for metric in metrics)
            gaps.append(TableRow(f"{labels[arm]} minus {labels[reference]}", cells))
    return Table("ablation", "Search cost and turn limit of MT-PPO, over all test sets (Fig. 4)", (
        Block("Ours", "arm", columns, tuple(rows), "runs"),
        Block("Ours, differences", "arm", columns, tuple(gaps))),
        ("The paper prints no numbers for these", *provenance(results, arms.values())))


BUILDERS: dict[str, Build] = {  # catalogue.TABLES says which experiments each reads
    "outcomes": outcomes_table,
    "effects": effects_table,
    "budget": budget,
    "table1_granularity": _table1,
    "table2_answer": _table2("answer_correct", "table2_answer"),
    "table2_format": _table2("format_correct", "table2_format"),
    "table5_two_turn": _table5,
    "search_summary": _summary,
    "ablation": _ablation,
}


def _winners(arms: Mapping[str, ArmRuns | None], columns: Sequence[tuple[str, Sequence[str]]]) -> list[str | None]:
    """The arm that is separated from all others in each column (metric, data sets), if there is one."""
    run = {name: runs for name, runs in arms.items() if runs is not None}
    return [samples.winner({name: samples.final(runs, metric, datasets) for name, runs in run.items()})
            for metric, datasets in columns]


def _score_row(label: str, runs: ArmRuns | None, metric: str, datasets: Sequence[str]) -> TableRow:
    """One metric: a cell for each data set, then their mean."""
    cells = (*(mean_cell(runs, metric, [d]) for d in datasets), mean_cell(runs, metric, datasets))
    return TableRow(label, cells, remark(runs))


def _metrics_row(label: str, runs: ArmRuns | None, metrics: Sequence[str], datasets: Sequence[str]) -> TableRow:
    """A cell for each metric, averaged over the data sets."""
    return TableRow(label, tuple(mean_cell(runs, metric, datasets) for metric in metrics), remark(runs))


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
    return Block(title, "method", columns, tuple(rows))


def _reported_cell(values: Sequence[Value], method: str, by: str, key: str, digits: int = 3) -> Cell:
    for value in values:
        if value.method == method and getattr(value, by) == key and value.value is not None:
            return Cell(Estimate(value.value, None, None, ()), digits=digits)
    return Cell(text=NOT_REPORTED)
