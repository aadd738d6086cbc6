# Final evaluations, and one experiment's runs collected into a few files.


rule evaluate:
    input:
        rules.world.output,
        lambda w: indexes(w.scale, run_of(w).experiment),
        policy=rules.train.output.policy,
    output:
        "results/{scale}/{experiment}/{arm}/seed-{seed}/evaluation.csv",
    log:
        "logs/{scale}/evaluate/{experiment}/{arm}/seed-{seed}.log",
    wildcard_constraints:
        experiment="(?!base/)[a-z_]+",
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).threads
    params:
        settings=lambda w: run_of(w).digest(),
    message:
        "evaluate: {wildcards.experiment}, {wildcards.arm}, seed {wildcards.seed}"
    shell:
        "turncredit evaluate --scale {wildcards.scale} --experiment {wildcards.experiment} --arm {wildcards.arm}"
        " --seed {wildcards.seed} > {log} 2>&1"


# A checkpoint that was brought in for a run (`turncredit import-run`).
rule evaluate_imported:
    input:
        rules.world.output,
        lambda w: indexes(w.scale, run_of(w).experiment),
        policy="results/imported/{scale}/{experiment}/{arm}/seed-{seed}/policy",
    output:
        "results/imported/{scale}/{experiment}/{arm}/seed-{seed}/evaluation.csv",
    log:
        "logs/{scale}/evaluate/imported/{experiment}/{arm}/seed-{seed}.log",
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).threads
    params:
        settings=lambda w: run_of(w).digest(),
    message:
        "evaluate: {wildcards.experiment}, {wildcards.arm}, seed {wildcards.seed}, which was imported"
    shell:
        "turncredit evaluate --scale {wildcards.scale} --experiment {wildcards.experiment} --arm {wildcards.arm}"
        " --seed {wildcards.seed} > {log} 2>&1"


rule evaluate_base:
    input:
        rules.world.output,
        lambda w: indexes(w.scale, *(["search"] if w.kind == "closed_book" else scale_of(w.scale).experiments)),
        policies=lambda w: untrained(w.scale, w.kind),
    output:
        "results/{scale}/base/{kind}/seed-0/evaluation.csv",
    log:
        "logs/{scale}/evaluate/base/{kind}.log",
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).threads
    params:
        settings=lambda w: digest(*(experiment.task for experiment in scale_of(w.scale).experiments.values())),
    message:
        "evaluate: {wildcards.kind}, before any reinforcement"
    shell:
        "turncredit evaluate-base {wildcards.kind} --scale {wildcards.scale} > {log} 2>&1"


rule evaluate_checkpoint:
    input:
        rules.world.output,
        lambda w: indexes(w.scale, played_by(w)),
        policy=rules.public_policy.output,
    output:
        "results/{scale}/base/{checkpoint}/seed-0/evaluation.csv",
    log:
        "logs/{scale}/evaluate/base/{checkpoint}.log",
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).threads
    params:
        settings=lambda w: digest(scale_of(w.scale).experiments[played_by(w)].task),
    message:
        "evaluate: {wildcards.checkpoint}, which others trained"
    shell:
        "turncredit evaluate-checkpoint {wildcards.checkpoint} --scale {wildcards.scale} > {log} 2>&1"


rule collect:
    input:
        metrics=lambda w: run_files(w, "metrics.csv"),
        manifests=lambda w: run_files(w, "manifest.json"),
        evaluations=lambda w: run_files(w, "evaluation.csv"),
    output:
        metrics="results/{scale}/{experiment}/metrics.csv",
        evaluation="results/{scale}/{experiment}/evaluation.csv.gz",
        manifests="results/{scale}/{experiment}/manifests.json",
    log:
        "logs/{scale}/collect/{experiment}.log",
    conda:
        "../../envs/core.yaml"
    params:
        runs=lambda w: runs_of(w.scale, w.experiment),
    message:
        "collect: the runs of {wildcards.experiment}"
    shell:
        "turncredit collect {wildcards.experiment} {params.runs} --scale {wildcards.scale} > {log} 2>&1"
