# Passages and questions of a scale, in the same files whether they are generated or downloaded.


rule world:
    input:
        lambda w: INPUTS[w.scale].data(),
    output:
        corpus="data/{scale}/corpus.jsonl",
        questions=directory("data/{scale}/questions"),
        summary="data/{scale}/world.json",
    log:
        "logs/{scale}/world.log",
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: INPUTS[w.scale].data_settings_hash(),
    message:
        "world: passages and questions of scale {wildcards.scale}"
    shell:
        "turncredit world --scale {wildcards.scale} > {log} 2>&1"
