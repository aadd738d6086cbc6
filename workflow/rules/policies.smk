# The policies before reinforcement: a tokenizer, the clean policy (the ceiling) and each task's base policy, made here;
# or given ones, as they are. And the policies that others trained.


rule tokenizer:
    input:
        rules.world.output,
    output:
        directory("policy/{scale}/tokenizer"),
    log:
        "logs/{scale}/tokenizer.log",
    wildcard_constraints:
        scale=warm(True),
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(scale_of(w.scale).policy),
    message:
        "tokenizer: trained on the corpus of scale {wildcards.scale}"
    shell:
        "turncredit tokenizer --scale {wildcards.scale} > {log} 2>&1"


rule clean_policy:
    input:
        rules.world.output,
        rules.tokenizer.output,
        lambda w: index_of(w.scale),
    output:
        directory("policy/{scale}/clean"),
    log:
        "logs/{scale}/warm-start/clean.log",
    benchmark:
        "benchmarks/{scale}/warm-start/clean.tsv"
    wildcard_constraints:
        scale=warm(True),
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).warm_start.threads
    params:
        settings=lambda w: warm_start_digest(w.scale, *tasks_of(w.scale)),
    message:
        "warm start: the clean policy of scale {wildcards.scale}, which no arm can beat"
    shell:
        "turncredit warm-start clean --scale {wildcards.scale} > {log} 2>&1"


rule base_policy:
    input:
        rules.world.output,
        lambda w: index_of(w.scale),
        clean=rules.clean_policy.output,
    output:
        directory("policy/{scale}/base/{task}"),
    log:
        "logs/{scale}/warm-start/base-{task}.log",
    benchmark:
        "benchmarks/{scale}/warm-start/base-{task}.tsv"
    wildcard_constraints:
        scale=warm(True),
    conda:
        "../../envs/core.yaml"
    threads: lambda w: scale_of(w.scale).warm_start.threads
    params:
        settings=lambda w: warm_start_digest(w.scale, w.task),
    message:
        "warm start: the base policy of {wildcards.task} at scale {wildcards.scale}, flawed on purpose"
    shell:
        "turncredit warm-start base --task {wildcards.task} --scale {wildcards.scale} > {log} 2>&1"


rule given_policy:
    input:
        lambda w: source_of_policy(scale_of(w.scale).policy.path_or_id),
    output:
        directory("policy/{scale}/base/{task}"),
    log:
        "logs/{scale}/given/{task}.log",
    wildcard_constraints:
        scale=warm(False),
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(scale_of(w.scale).policy),
    message:
        "policy: the given base policy of {wildcards.task} at scale {wildcards.scale}"
    shell:
        "turncredit import-policy --task {wildcards.task} --scale {wildcards.scale} > {log} 2>&1"


rule public_policy:
    input:
        lambda w: source_of_policy(scale_of(w.scale).checkpoint(w.checkpoint).path_or_id),
    output:
        directory("policy/{scale}/checkpoints/{checkpoint}"),
    log:
        "logs/{scale}/given/{checkpoint}.log",
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(scale_of(w.scale).checkpoint(w.checkpoint)),
    message:
        "policy: {wildcards.checkpoint}, which others trained"
    shell:
        "turncredit import-policy --checkpoint {wildcards.checkpoint} --scale {wildcards.scale} > {log} 2>&1"
