# Policies that RL training starts from. With a warm start: a tokenizer, the expert policy (trained on correct demonstrations, an
# upper reference) and each task's initial policy (trained on degraded ones). Without: a pretrained policy, unchanged.
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
        settings=lambda w: settings_hash(SCALES[w.scale].policy),
    message:
        "tokenizer: trained on the corpus of scale {wildcards.scale}"
    shell:
        "turncredit tokenizer --scale {wildcards.scale} > {log} 2>&1"


rule expert_policy:
    input:
        rules.world.output,
        rules.tokenizer.output,
        lambda w: INPUTS[w.scale].index(),
    output:
        directory("policy/{scale}/expert"),
    log:
        "logs/{scale}/warm-start/expert.log",
    benchmark:
        "benchmarks/{scale}/warm-start/expert.tsv"
    wildcard_constraints:
        scale=WARM_START_SCALES,
    conda:
        "../../envs/core.yaml"
    threads: lambda w: SCALES[w.scale].warm_start.threads
    params:
        settings=lambda w: INPUTS[w.scale].warm_start_settings_hash(*task_experiments(SCALES[w.scale])),
    message:
        "warm start: the expert policy of scale {wildcards.scale}"
    shell:
        "turncredit warm-start expert --scale {wildcards.scale} > {log} 2>&1"


rule initial_policy:
    input:
        rules.world.output,
        lambda w: INPUTS[w.scale].index(),
        expert=rules.expert_policy.output,
    output:
        directory("policy/{scale}/initial/{task}"),
    log:
        "logs/{scale}/warm-start/initial-{task}.log",
    benchmark:
        "benchmarks/{scale}/warm-start/initial-{task}.tsv"
    wildcard_constraints:
        scale=WARM_START_SCALES,
    conda:
        "../../envs/core.yaml"
    threads: lambda w: SCALES[w.scale].warm_start.threads
    params:
        settings=lambda w: INPUTS[w.scale].warm_start_settings_hash(w.task),
    message:
        "warm start: the initial policy of {wildcards.task} at scale {wildcards.scale}"
    shell:
        "turncredit warm-start initial --task {wildcards.task} --scale {wildcards.scale} > {log} 2>&1"


rule pretrained_policy:
    input:
        lambda w: INPUTS[w.scale].policy(SCALES[w.scale].policy.path_or_id),
    output:
        directory("policy/{scale}/initial/{task}"),
    log:
        "logs/{scale}/import-policy/{task}.log",
    wildcard_constraints:
        scale=one_of(name for name, scale in SCALES.items() if scale.warm_start is None),
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: settings_hash(SCALES[w.scale].policy),
    message:
        "policy: the pretrained initial policy of {wildcards.task} at scale {wildcards.scale}"
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
        settings=lambda w: settings_hash(SCALES[w.scale].checkpoint(w.checkpoint)),
    message:
        "policy: the pretrained checkpoint {wildcards.checkpoint}"
    shell:
        "turncredit import-policy --checkpoint {wildcards.checkpoint} --scale {wildcards.scale} > {log} 2>&1"
