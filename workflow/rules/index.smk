# The index of a scale's retriever, index/{scale}/, and of its further ones, index/{scale}/{retriever}/. A server is no
# rule: training and evaluation lease one, on their machine or as a job of its own, and the last to let go ends it.


rule build_index:
    input:
        passages_of,
    output:
        manifest="index/{scale}/index.json",
        lucene=directory("index/{scale}/lucene"),
    log:
        "logs/{scale}/index.log",
    benchmark:
        "benchmarks/{scale}/index.tsv"
    wildcard_constraints:
        scale=scales_of("lucene"),
    conda:
        "../../envs/retrieval.yaml"
    params:
        settings=lambda w: digest(retriever_of(w).model_dump(include={"kind", "k1", "b", "prebuilt"})),
    message:
        "index: Lucene over the corpus of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} > {log} 2>&1"


rule build_further_index:
    input:
        passages_of,
    output:
        manifest="index/{scale}/{retriever}/index.json",
        lucene=directory("index/{scale}/{retriever}/lucene"),
    log:
        "logs/{scale}/index-{retriever}.log",
    benchmark:
        "benchmarks/{scale}/index-{retriever}.tsv"
    wildcard_constraints:
        retriever=further_retrievers(),
    conda:
        "../../envs/retrieval.yaml"
    params:
        settings=lambda w: digest(retriever_of(w).model_dump(include={"kind", "k1", "b", "prebuilt"})),
    message:
        "index: Lucene for the retriever {wildcards.retriever} of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} --retriever {wildcards.retriever} > {log} 2>&1"


# Where each passage begins: a dense retriever keeps no copy of them.
rule passage_table:
    input:
        corpus=rules.world.output.corpus,
    output:
        directory("index/{scale}/passages"),
    log:
        "logs/{scale}/passages.log",
    wildcard_constraints:
        scale=scales_of("faiss"),
    conda:
        "../../envs/retrieval.yaml"
    message:
        "passages: where each begins in the corpus of scale {wildcards.scale}"
    shell:
        "turncredit passages --scale {wildcards.scale} > {log} 2>&1"


# One shard of the passages as vectors: many jobs, each on a GPU where the encoder is on one.
rule embed:
    input:
        corpus=rules.world.output.corpus,
        table=rules.passage_table.output,
        encoder=encoder_of,
    output:
        vectors="index/{scale}/embeddings/{shard}-of-{shards}.npy",
        manifest="index/{scale}/embeddings/{shard}-of-{shards}.json",
    log:
        "logs/{scale}/embed/{shard}-of-{shards}.log",
    benchmark:
        "benchmarks/{scale}/embed/{shard}-of-{shards}.tsv"
    wildcard_constraints:
        scale=scales_of("faiss"),
        shard="[0-9]{5}",
        shards="[0-9]{5}",
    conda:
        "../../envs/retrieval.yaml"
    params:
        settings=lambda w: digest(embedded(w.scale)),
        shard=lambda w: int(w.shard),
    message:
        "embed: shard {wildcards.shard} of {wildcards.shards} of the passages of scale {wildcards.scale}"
    shell:
        "turncredit embed --scale {wildcards.scale} --shard {params.shard} > {log} 2>&1"


rule build_faiss_index:
    input:
        lambda w: vectors_of(w, f"index/{w.scale}"),
        table=rules.passage_table.output,
        encoder=encoder_of,
    output:
        manifest="index/{scale}/index.json",
        faiss=directory("index/{scale}/faiss"),
    log:
        "logs/{scale}/index.log",
    benchmark:
        "benchmarks/{scale}/index.tsv"
    wildcard_constraints:
        scale=scales_of("faiss"),
    conda:
        "../../envs/retrieval.yaml"
    params:
        settings=lambda w: digest(embedded(w.scale), build_settings(retriever_of(w).faiss), retriever_of(w).prebuilt),
    message:
        "index: FAISS over the vectors of the passages of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} > {log} 2>&1"
