# Policies before reinforcement. With a warm start: a tokenizer, the clean policy (trained on flawless demonstrations, an
# upper reference) and each task's base policy (trained on flawed ones). Without: a pretrained policy, unchanged.
# Last, the pretrained checkpoints that are evaluated only.

WARM_START_SCALES = one_of(name for name, scale in SCALES.items() if scale.warm_start is not None)


rule tokenizer:
    input:
        rules.world.output,
    output:
        directory("policy/{scale}/tokenizer"),
    log:
        "logs/{scale}/tokenizer.log",
    wildcard_constraints:
        scale=WARM_START_SCALES,
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(SCALES[w.scale].policy),
    message:
        "tokenizer: trained on the corpus of scale {wildcards.scale}"
    shell:
        "turncredit tokenizer --scale {wildcards.scale} > {log} 2>&1"


rule clean_policy:
    input:
        rules.world.output,
        rules.tokenizer.output,
        lambda w: INPUTS[w.scale].index(),
    output:
        directory("policy/{scale}/clean"),
    log:
        "logs/{scale}/warm-start/clean.log",
    benchmark:
        "benchmarks/{scale}/warm-start/clean.tsv"
    wildcard_constraints:
        scale=WARM_START_SCALES,
    conda:
        "../../envs/core.yaml"
    threads: lambda w: SCALES[w.scale].warm_start.threads
    params:
        settings=lambda w: INPUTS[w.scale].warm_start_digest(*task_experiments(SCALES[w.scale])),
    message:
        "warm start: the clean policy of scale {wildcards.scale}"
    shell:
        "turncredit warm-start clean --scale {wildcards.scale} > {log} 2>&1"


rule base_policy:
    input:
        rules.world.output,
        lambda w: INPUTS[w.scale].index(),
        clean=rules.clean_policy.output,
    output:
        directory("policy/{scale}/base/{task}"),
    log:
        "logs/{scale}/warm-start/base-{task}.log",
    benchmark:
        "benchmarks/{scale}/warm-start/base-{task}.tsv"
    wildcard_constraints:
        scale=WARM_START_SCALES,
    conda:
        "../../envs/core.yaml"
    threads: lambda w: SCALES[w.scale].warm_start.threads
    params:
        settings=lambda w: INPUTS[w.scale].warm_start_digest(w.task),
    message:
        "warm start: the base policy of {wildcards.task} at scale {wildcards.scale}"
    shell:
        "turncredit warm-start base --task {wildcards.task} --scale {wildcards.scale} > {log} 2>&1"


rule pretrained_policy:
    input:
        lambda w: INPUTS[w.scale].policy(SCALES[w.scale].policy.path_or_id),
    output:
        directory("policy/{scale}/base/{task}"),
    log:
        "logs/{scale}/import-policy/{task}.log",
    wildcard_constraints:
        scale=one_of(name for name, scale in SCALES.items() if scale.warm_start is None),
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(SCALES[w.scale].policy),
    message:
        "policy: the pretrained base policy of {wildcards.task} at scale {wildcards.scale}"
    shell:
        "turncredit import-policy --task {wildcards.task} --scale {wildcards.scale} > {log} 2>&1"


rule pretrained_checkpoint:
    input:
        lambda w: INPUTS[w.scale].policy(SCALES[w.scale].checkpoint(w.checkpoint).path_or_id),
    output:
        directory("policy/{scale}/checkpoints/{checkpoint}"),
    log:
        "logs/{scale}/import-policy/{checkpoint}.log",
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(SCALES[w.scale].checkpoint(w.checkpoint)),
    message:
        "policy: the pretrained checkpoint {wildcards.checkpoint}"
    shell:
        "turncredit import-policy --checkpoint {wildcards.checkpoint} --scale {wildcards.scale} > {log} 2>&1"
