# Passages and questions: a world that is made here, or what was fetched, in the same files.


rule world:
    input:
        lambda w: records(materials(w.scale)),
    output:
        corpus="data/{scale}/corpus.jsonl",
        questions=directory("data/{scale}/questions"),
        summary="data/{scale}/world.json",
    log:
        "logs/{scale}/world.log",
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(*world_settings(w.scale)),
    message:
        "world: passages and questions of scale {wildcards.scale}"
    shell:
        "turncredit world --scale {wildcards.scale} > {log} 2>&1"
