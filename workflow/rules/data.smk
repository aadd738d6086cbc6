# The mini world: passages and questions.


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
