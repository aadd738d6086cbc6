# The whole study as one DAG: data, index, initial policies, training, evaluation, tables, figures, audit.
# config/<scale>.yaml says what is computed, profiles/ where. Each call can choose with --config:
#   scale=mini|smoke|gpu|paper   bases=3   seeds=3   runs=auto|fresh|shipped   experiments=search
# By default shipped runs are plotted. `runs=fresh` trains instead.
from snakemake.utils import min_version

min_version("9.0")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/cluster.smk"
include: "workflow/rules/fetch.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/index.smk"
include: "workflow/rules/policies.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/credit_bench.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/unknown_targets.smk"


localrules:
    all,
    search,
    checkpoints,
    credit_bench,
    plan,
    plan_of,
    data,
    index,
    audit,
    ship_runs,
    ship_pages,
    readme,


rule all:
    default_target: True
    input:
        lambda w: RUNS[config["scale"]].page_files(),


# The paper's main comparison: its figures and tables, and the audit.
rule search:
    input:
        lambda w: RUNS[config["scale"]].page_files(of="search"),


# Evaluations of the pretrained checkpoints in the paper's Table 2.
rule checkpoints:
    input:
        lambda w: expand(
            rules.evaluate_checkpoint.output,
            scale=config["scale"],
            checkpoint=[name for name, found in SCALES[config["scale"]].checkpoints.items() if found.in_all],
        ),


# What each estimator's credit is worth at fixed policies: the credit bench of a scale, and its figures.
rule credit_bench:
    input:
        lambda w: RUNS[config["scale"]].bench_files(),
        lambda w: expand(
            "figures/{scale}/{name}.pdf",
            scale=config["scale"],
            name=RUNS[config["scale"]].bench_pages(),
        ),


# What each run needs (memory, hours, disk). `plan` fails if a run cannot fit; run it before training.
rule plan:
    input:
        expand(rules.plan_of.output, scale=config["scale"]),


rule data:
    input:
        expand(rules.world.output, scale=config["scale"]),


rule index:
    input:
        lambda w: INPUTS[config["scale"]].all_indexes(),
