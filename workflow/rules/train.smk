# One training run. Step checkpoints are not declared outputs, because Snakemake deletes those before it runs a job
# again; so an interrupted run resumes from its last checkpoint. It exits with code 75, and profiles/slurm retries it.
# `exec` replaces the shell, which a signal would otherwise end before the run has saved its state.
# At a scale with `evaluate_in_training` it also evaluates the final policy, and the rule evaluate takes the cached file.


rule train:
    input:
        rules.world.output,
        lambda w: INPUTS[w.scale].indexes(run_config(w).experiment),
        initial="policy/{scale}/base-{base}/initial",
    output:
        metrics="results/{scale}/{experiment}/{arm}/base-{base}/seed-{seed}/metrics.csv",
        manifest="results/{scale}/{experiment}/{arm}/base-{base}/seed-{seed}/manifest.json",
        policy=directory("checkpoints/{scale}/{experiment}/{arm}/base-{base}/seed-{seed}/final"),
    log:
        "logs/{scale}/train/{experiment}/{arm}/base-{base}/seed-{seed}.log",
    benchmark:
        "benchmarks/{scale}/train/{experiment}/{arm}/base-{base}/seed-{seed}.tsv"
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
        "train: {wildcards.experiment}, {wildcards.arm}, base policy {wildcards.base}, seed {wildcards.seed}"
    shell:
        "exec turncredit train --scale {wildcards.scale} --experiment {wildcards.experiment} --arm {wildcards.arm}"
        " --base {wildcards.base} --seed {wildcards.seed} > {log} 2>&1"
