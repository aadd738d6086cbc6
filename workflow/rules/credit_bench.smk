# The credit bench: one job for each base policy and checkpoint. It trains nothing; a checkpoint of an arm needs that run.


rule measure_credit:
    input:
        rules.world.output,
        bench_policy,
        lambda w: INPUTS[w.scale].indexes(experiment_name(SCALES[w.scale])),
        initial="policy/{scale}/base-{base}/initial",
    output:
        csv="results/{scale}/credit_bench/base-{base}/{policy}/credit_bench.csv",
        manifest="results/{scale}/credit_bench/base-{base}/{policy}/manifest.json",
    log:
        "logs/{scale}/credit_bench/base-{base}/{policy}.log",
    benchmark:
        "benchmarks/{scale}/credit_bench/base-{base}/{policy}.tsv"
    wildcard_constraints:
        policy=ARM,
    conda:
        environment
    threads: lambda w: SCALES[w.scale].threads
    params:
        settings=lambda w: bench_hash(SCALES[w.scale], int(w.base)),
    message:
        "credit bench: {wildcards.policy}, base policy {wildcards.base}"
    shell:
        "turncredit credit-bench --scale {wildcards.scale} --base {wildcards.base} --checkpoint {wildcards.policy}"
        " > {log} 2>&1"


rule collect_credit_bench:
    input:
        lambda w: [f"{folder}/{name}" for folder in RUNS[w.scale].bench_folders() for name in BENCH_FILES],
    output:
        csv="results/{scale}/credit_bench/credit_bench.csv",
        manifests="results/{scale}/credit_bench/manifests.json",
    log:
        "logs/{scale}/credit_bench/collect.log",
    conda:
        "../../envs/core.yaml"
    params:
        folders=lambda w: RUNS[w.scale].bench_folders(),
    message:
        "collect: the credit bench of scale {wildcards.scale}"
    shell:
        "turncredit collect-credit-bench {params.folders} --scale {wildcards.scale} > {log} 2>&1"


for _name, _uses in BENCH_FIGURES.items():

    rule:
        name:
            f"figure_{_name}"
        input:
            bench=lambda w: RUNS[w.scale].bench_files(),
            runs=lambda w, uses=_uses: RUNS[w.scale].collected_files(uses),
            code=REPORTING,
        output:
            pdf=f"figures/{{scale}}/{_name}.pdf",
            png=report(
                f"figures/{{scale}}/{_name}.png",
                caption=f"../report/{_name}.rst",
                category="Figures",
                labels={"figure": _name, "scale": "{scale}"},
            ),
            csv=f"figures/{{scale}}/{_name}.csv",
        log:
            f"logs/{{scale}}/figures/{_name}.log",
        conda:
            "../../envs/core.yaml"
        params:
            name=_name,
            folders=lambda w, uses=_uses: [RUNS[w.scale].bench(), *RUNS[w.scale].collected(uses)],
        message:
            "figure: {params.name} from {params.folders}"
        shell:
            "turncredit figure {params.name} {params.folders} --scale {wildcards.scale} > {log} 2>&1"
