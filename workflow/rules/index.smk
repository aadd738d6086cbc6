# The Lucene index. Its server is no rule: training and evaluation lease one, and the last to let go ends it.


rule build_index:
    input:
        corpus=rules.world.output.corpus,
    output:
        manifest="index/{scale}/index.json",
        lucene=directory("index/{scale}/lucene"),
    log:
        "logs/{scale}/index.log",
    benchmark:
        "benchmarks/{scale}/index.tsv"
    conda:
        "../../envs/retrieval.yaml"
    params:
        settings=lambda w: digest(scale_of(w.scale).retriever.model_dump(include={"kind", "k1", "b"})),
    message:
        "index: Lucene over the corpus of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} > {log} 2>&1"
