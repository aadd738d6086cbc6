# The whole study as one DAG: data, index, base policy, training, evaluation, tables, figures, audit.
# What to compute is in config/<scale>.yaml; where, in profiles/; what one call asks for, in --config:
#   scale=mini|smoke   seeds=3   runs=auto|fresh|shipped   experiments=search
from snakemake.utils import min_version

min_version("9.0")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/cluster.smk"
include: "workflow/rules/sources.smk"
include: "workflow/rules/fetch.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/index.smk"
include: "workflow/rules/policies.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/mistyped.smk"


localrules:
    all,
    search,
    checkpoints,
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
        lambda w: drawn(config["scale"]),


# The paper's main comparison: its six arms, what is drawn from them, and the audit.
rule search:
    input:
        lambda w: drawn(config["scale"], of="search"),


# The policies that others trained and the paper's Table 2 evaluates.
rule checkpoints:
    input:
        lambda w: expand(
            rules.evaluate_checkpoint.output,
            scale=config["scale"],
            checkpoint=scale_of(config["scale"]).checkpoints,
        ),


# What each run needs, before any is run; it fails where a run cannot fit.
rule plan:
    input:
        expand(rules.plan_of.output, scale=config["scale"]),


rule data:
    input:
        expand(rules.world.output, scale=config["scale"]),


rule index:
    input:
        lambda w: [file for name in all_retrievers(config["scale"]) for file in index_of(config["scale"], name)],
