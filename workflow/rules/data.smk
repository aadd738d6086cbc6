# The mini world, and the policies that know its language: base (flawed on purpose) and clean (the ceiling).


rule world:
    output:
        corpus="data/{scale}/corpus.jsonl",
        questions=directory("data/{scale}/questions"),
        summary="data/{scale}/world.json",
    log:
        "logs/{scale}/world.log",
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(scale_of(w.scale).world),
    message:
        "world: passages and questions of scale {wildcards.scale}"
    shell:
        "turncredit world --scale {wildcards.scale} > {log} 2>&1"


rule tokenizer:
    input:
        rules.world.output,
    output:
        directory("policy/{scale}/tokenizer"),
    log:
        "logs/{scale}/tokenizer.log",
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(scale_of(w.scale).policy),
    message:
        "tokenizer: trained on the corpus of scale {wildcards.scale}"
    shell:
        "turncredit tokenizer --scale {wildcards.scale} > {log} 2>&1"


rule warm_start:
    input:
        rules.world.output,
        rules.tokenizer.output,
    output:
        directory("policy/{scale}/{kind}"),
    log:
        "logs/{scale}/warm-start-{kind}.log",
    benchmark:
        "benchmarks/{scale}/warm-start-{kind}.tsv"
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).threads
    params:
        settings=lambda w: digest(scale_of(w.scale).policy, scale_of(w.scale).warm_start),
    message:
        "warm start: the {wildcards.kind} policy of scale {wildcards.scale}"
    shell:
        "turncredit warm-start {wildcards.kind} --scale {wildcards.scale} > {log} 2>&1"
