# One training run. Its step checkpoints are no declared output, since Snakemake deletes those before it runs
# a job again: an interrupted run goes on from the last one. Exit code 75 (interrupted) is worth a retry, which
# profiles/slurm gives. `exec` leaves no shell between, which a signal would end before the run is saved.


rule train:
    input:
        rules.world.output,
        lambda w: indexes(w.scale, run_of(w).experiment),
        base=lambda w: f"policy/{w.scale}/base/{run_of(w).task.name}",
    output:
        metrics="results/{scale}/{experiment}/{arm}/seed-{seed}/metrics.csv",
        manifest="results/{scale}/{experiment}/{arm}/seed-{seed}/manifest.json",
        policy=directory("checkpoints/{scale}/{experiment}/{arm}/seed-{seed}/final"),
    log:
        "logs/{scale}/train/{experiment}/{arm}/seed-{seed}.log",
    benchmark:
        "benchmarks/{scale}/train/{experiment}/{arm}/seed-{seed}.tsv"
    wildcard_constraints:
        experiment="(?!base/)[a-z_]+",
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).threads
    params:
        settings=lambda w: run_of(w).digest(),
    message:
        "train: {wildcards.experiment}, {wildcards.arm}, seed {wildcards.seed}"
    shell:
        "exec turncredit train --scale {wildcards.scale} --experiment {wildcards.experiment} --arm {wildcards.arm}"
        " --seed {wildcards.seed} > {log} 2>&1"
