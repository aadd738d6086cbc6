# The index of a scale's own retriever is index/{scale}/; those of further retrievers are index/{scale}/{retriever}/.
# No rule starts a server: the first training or evaluation job that searches starts one, on its machine or as a
# cluster job; further jobs share it, and it ends after its last user.

FAISS_SCALES = one_of(name for name, scale in SCALES.items() if scale.retriever.kind == "faiss")


rule build_index:
    input:
        lambda w: INPUTS[w.scale].passages(),
    output:
        manifest="index/{scale}/index.json",
        lucene=directory("index/{scale}/lucene"),
    log:
        "logs/{scale}/index.log",
    benchmark:
        "benchmarks/{scale}/index.tsv"
    wildcard_constraints:
        scale=one_of(name for name, scale in SCALES.items() if scale.retriever.kind == "lucene"),
    conda:
        environment
    params:
        settings=lambda w: INPUTS[w.scale].lucene_settings_hash(),
    message:
        "index: Lucene over the corpus of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} > {log} 2>&1"


rule build_further_index:
    input:
        lambda w: INPUTS[w.scale].passages(w.retriever),
    output:
        manifest="index/{scale}/{retriever}/index.json",
        lucene=directory("index/{scale}/{retriever}/lucene"),
    log:
        "logs/{scale}/index-{retriever}.log",
    benchmark:
        "benchmarks/{scale}/index-{retriever}.tsv"
    wildcard_constraints:
        retriever=further_retrievers(SCALES),
    conda:
        environment
    params:
        settings=lambda w: INPUTS[w.scale].lucene_settings_hash(w.retriever),
    message:
        "index: Lucene for the retriever {wildcards.retriever} of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} --retriever {wildcards.retriever} > {log} 2>&1"


# The offset of each passage in the corpus file, where a dense retriever reads the passages it found.
rule passage_table:
    input:
        corpus=rules.world.output.corpus,
    output:
        directory("index/{scale}/passages"),
    log:
        "logs/{scale}/passages.log",
    wildcard_constraints:
        scale=FAISS_SCALES,
    conda:
        environment
    message:
        "passages: their offsets in the corpus of scale {wildcards.scale}"
    shell:
        "turncredit passages --scale {wildcards.scale} > {log} 2>&1"


# Vectors of one shard of the passages: a job each, on a GPU if the encoder's device is one.
rule embed:
    input:
        corpus=rules.world.output.corpus,
        table=rules.passage_table.output,
        encoder=lambda w: INPUTS[w.scale].encoder(),
    output:
        vectors="index/{scale}/embeddings/{shard}-of-{shards}.npy",
        manifest="index/{scale}/embeddings/{shard}-of-{shards}.json",
    log:
        "logs/{scale}/embed/{shard}-of-{shards}.log",
    benchmark:
        "benchmarks/{scale}/embed/{shard}-of-{shards}.tsv"
    wildcard_constraints:
        scale=FAISS_SCALES,
        shard="[0-9]{5}",
        shards="[0-9]{5}",
    conda:
        environment
    params:
        settings=lambda w: INPUTS[w.scale].vectors_settings_hash(),
        shard=lambda w: int(w.shard),
    message:
        "embed: shard {wildcards.shard} of {wildcards.shards} of the passages of scale {wildcards.scale}"
    shell:
        "turncredit embed --scale {wildcards.scale} --shard {params.shard} > {log} 2>&1"


rule build_faiss_index:
    input:
        lambda w: INPUTS[w.scale].vectors(),
        table=rules.passage_table.output,
        encoder=lambda w: INPUTS[w.scale].encoder(),
    output:
        manifest="index/{scale}/index.json",
        faiss=directory("index/{scale}/faiss"),
    log:
        "logs/{scale}/index.log",
    benchmark:
        "benchmarks/{scale}/index.tsv"
    wildcard_constraints:
        scale=FAISS_SCALES,
    conda:
        environment
    params:
        settings=lambda w: INPUTS[w.scale].faiss_settings_hash(),
    message:
        "index: FAISS over the vectors of the passages of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} > {log} 2>&1"
