# Final evaluations, and the runs of an experiment collected into a few files.
# At a scale with `evaluate_in_training` (small policies) the rule train has evaluated too: loading torch takes longer than
# playing all test questions. Then the rule evaluate moves that cached file to its output.


rule evaluate:
    input:
        rules.world.output,
        lambda w: INPUTS[w.scale].indexes(w.experiment),
        policy=rules.train.output.policy,
    output:
        "results/{scale}/{experiment}/{arm}/base-{base}/seed-{seed}/evaluation.csv",
    log:
        "logs/{scale}/evaluate/{experiment}/{arm}/base-{base}/seed-{seed}.log",
    wildcard_constraints:
        experiment=f"(?!untrained/){EXPERIMENT}",
    conda:
        environment
    threads: lambda w: SCALES[w.scale].threads
    params:
        settings=lambda w: settings_hash(
            run_config(w).digest(), SCALES[w.scale].retriever_of(w.experiment).result_settings()
        ),
    message:
        "evaluate: {wildcards.experiment}, {wildcards.arm}, base policy {wildcards.base}, seed {wildcards.seed}"
    shell:
        "turncredit evaluate --scale {wildcards.scale} --experiment {wildcards.experiment} --arm {wildcards.arm}"
        " --base {wildcards.base} --seed {wildcards.seed} > {log} 2>&1"


# The policy of an imported run (`turncredit import-run`).
rule evaluate_imported:
    input:
        rules.world.output,
        lambda w: INPUTS[w.scale].indexes(w.experiment),
        policy="results/imported/{scale}/{experiment}/{arm}/base-{base}/seed-{seed}/policy",
    output:
        "results/imported/{scale}/{experiment}/{arm}/base-{base}/seed-{seed}/evaluation.csv",
    log:
        "logs/{scale}/evaluate/imported/{experiment}/{arm}/base-{base}/seed-{seed}.log",
    conda:
        environment
    threads: lambda w: SCALES[w.scale].threads
    params:
        settings=lambda w: settings_hash(
            run_config(w).digest(), SCALES[w.scale].retriever_of(w.experiment).result_settings()
        ),
    message:
        "evaluate: {wildcards.experiment}, {wildcards.arm}, base policy {wildcards.base}, seed {wildcards.seed} (imported)"
    shell:
        "turncredit evaluate --scale {wildcards.scale} --experiment {wildcards.experiment} --arm {wildcards.arm}"
        " --base {wildcards.base} --seed {wildcards.seed} > {log} 2>&1"


rule evaluate_initial:
    input:
        rules.world.output,
        lambda w: INPUTS[w.scale].indexes(*SCALES[w.scale].experiments),
        policies=lambda w: f"policy/{w.scale}/base-{w.base}/{'expert' if w.kind == 'expert' else 'initial'}",
    output:
        "results/{scale}/untrained/{kind}/base-{base}/evaluation.csv",
    log:
        "logs/{scale}/evaluate/untrained/{kind}-{base}.log",
    conda:
        environment
    threads: lambda w: SCALES[w.scale].threads
    params:
        settings=lambda w: settings_hash(*(experiment.task for experiment in SCALES[w.scale].experiments.values())),
    message:
        "evaluate: {wildcards.kind}, base policy {wildcards.base}, without RL training"
    shell:
        "turncredit evaluate-initial {wildcards.kind} --base {wildcards.base} --scale {wildcards.scale} > {log} 2>&1"


rule evaluate_checkpoint:
    input:
        rules.world.output,
        lambda w: INPUTS[w.scale].indexes(SCALES[w.scale].checkpoint(w.checkpoint).experiment),
        policy=rules.pretrained_checkpoint.output,
    output:
        "results/{scale}/untrained/{checkpoint}/base-0/evaluation.csv",
    log:
        "logs/{scale}/evaluate/untrained/{checkpoint}.log",
    conda:
        environment
    threads: lambda w: SCALES[w.scale].threads
    params:
        settings=lambda w: settings_hash(
            SCALES[w.scale].experiments[SCALES[w.scale].checkpoint(w.checkpoint).experiment].task
        ),
    message:
        "evaluate: the pretrained checkpoint {wildcards.checkpoint}"
    shell:
        "turncredit evaluate-checkpoint {wildcards.checkpoint} --scale {wildcards.scale} > {log} 2>&1"


rule collect:
    input:
        metrics=lambda w: RUNS[w.scale].files(w.experiment, "metrics.csv"),
        manifests=lambda w: RUNS[w.scale].files(w.experiment, "manifest.json"),
        evaluations=lambda w: RUNS[w.scale].files(w.experiment, "evaluation.csv"),
    output:
        metrics="results/{scale}/{experiment}/metrics.csv",
        evaluation="results/{scale}/{experiment}/evaluation.csv.gz",
        manifests="results/{scale}/{experiment}/manifests.json",
        episodes="results/{scale}/{experiment}/episodes.jsonl",
        hashes="results/{scale}/{experiment}/SHA256SUMS",
    log:
        "logs/{scale}/collect/{experiment}.log",
    wildcard_constraints:
        experiment=f"(?!credit_bench/){EXPERIMENT}",
    conda:
        "../../envs/core.yaml"
    params:
        runs=lambda w: RUNS[w.scale].folders(w.experiment),
    message:
        "collect: the runs of {wildcards.experiment}"
    shell:
        "turncredit collect {wildcards.experiment} {params.runs} --scale {wildcards.scale} > {log} 2>&1"
