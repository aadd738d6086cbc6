"""What all rules share: the call, the scales, and their file lists (``turncredit.workflow``)."""

import os
import sys
from pathlib import Path

from snakemake.utils import validate
from turncredit.config.credit_bench import FILES as BENCH_FILES
from turncredit.config.load import RunConfig, load_scale, scale_names
from turncredit.config.names import ARM, EXPERIMENT
from turncredit.credit_bench.setup import bench_config, bench_hash, experiment_name, trained_run
from turncredit.data.sources import load_registry
from turncredit.reporting.catalogue import BENCH_FIGURES, FIGURES, TABLES
from turncredit.training.run_folder import RunPaths
from turncredit.workflow.request import WorkflowRequest, typed
from turncredit.workflow.inputs import (
    ScaleInputs,
    settings_hash,
    further_retrievers,
    one_of,
    task_experiments,
)
from turncredit.workflow.runs import ScaleRuns
from turncredit.workflow.unknown_targets import refuse_unknown_page, unknown_page_folder

# Rules call the `turncredit` of this Python's environment, also where that environment is not activated.
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))

config.update(typed(config))
validate(config, "../schemas/config.schema.json")

SCALES = {name: load_scale(name) for name in scale_names()}
REQUEST = WorkflowRequest.of(config, SCALES)
REGISTRY = load_registry(Path())
RUNS = {name: ScaleRuns(scale, REQUEST) for name, scale in SCALES.items()}
INPUTS = {name: ScaleInputs(scale, REGISTRY) for name, scale in SCALES.items()}

# Code and numbers that pages are made from: an edit makes pages again, and trains nothing.
REPORTING = sorted(map(str, Path("src/turncredit/reporting").rglob("*.py")))
REPORTED = sorted(map(str, Path("paper_tables/reported").glob("*.csv")))


wildcard_constraints:
    scale=one_of(SCALES),
    experiment=EXPERIMENT,
    arm=ARM,
    base="[0-9]+",
    seed="[0-9]+",
    kind="initial|expert|closed_book",
    task=one_of({task for scale in SCALES.values() for task in task_experiments(scale)}),
    checkpoint=one_of({name for scale in SCALES.values() for name in scale.checkpoints}),
    name="[a-z0-9_]+",


def environment(wildcards) -> str:
    """The conda environment of rules that load a policy, build an index, or serve one."""
    return f"../../envs/{SCALES[wildcards.scale].environment}.yaml"


def run_config(wildcards) -> RunConfig:
    """The resolved configuration of one training run."""
    return SCALES[wildcards.scale].run(wildcards.experiment, wildcards.arm, int(wildcards.seed), int(wildcards.base))


def bench_policy(wildcards) -> list[str]:
    """The policy that one job measures. A run's steps lie beside its final policy, undeclared (see train.smk)."""
    scale = SCALES[wildcards.scale]
    trained = trained_run(scale, bench_config(scale, int(wildcards.base)), wildcards.policy)
    return [] if trained is None else [str(RunPaths.under(Path(), trained).final_policy)]
