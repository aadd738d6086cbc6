# Policies that RL training starts from. With a warm start: a tokenizer, and base policies, each with an expert policy (trained on
# correct demonstrations, an upper reference) and each task's initial policy (trained on degraded ones). Without: one base
# policy, a pretrained one, unchanged. Last, the pretrained checkpoints that are evaluated only.

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


# One job a base policy: it tries one warm start after the other until the gates are passed, and lists all of them.
rule base_policy:
    input:
        rules.world.output,
        rules.tokenizer.output,
        lambda w: INPUTS[w.scale].index(),
    output:
        expert=directory("policy/{scale}/base-{base}/expert"),
        initial=directory("policy/{scale}/base-{base}/initial"),
        attempts="policy/{scale}/base-{base}/attempts.csv",
    log:
        "logs/{scale}/base-policy/{base}.log",
    benchmark:
        "benchmarks/{scale}/base-policy/{base}.tsv"
    wildcard_constraints:
        scale=WARM_START_SCALES,
    conda:
        "../../envs/core.yaml"
    threads: lambda w: SCALES[w.scale].warm_start.threads
    params:
        settings=lambda w: INPUTS[w.scale].warm_start_settings_hash(),
    message:
        "warm start: base policy {wildcards.base} of scale {wildcards.scale}"
    shell:
        "turncredit base-policy --base {wildcards.base} --scale {wildcards.scale} > {log} 2>&1"


rule pretrained_policy:
    input:
        lambda w: INPUTS[w.scale].policy(SCALES[w.scale].policy.path_or_id),
    output:
        directory("policy/{scale}/base-0/initial"),
    log:
        "logs/{scale}/import-policy/initial.log",
    wildcard_constraints:
        scale=one_of(name for name, scale in SCALES.items() if scale.warm_start is None),
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: settings_hash(SCALES[w.scale].policy),
    message:
        "policy: the pretrained initial policy of scale {wildcards.scale}"
    shell:
        "turncredit import-policy --scale {wildcards.scale} > {log} 2>&1"


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
