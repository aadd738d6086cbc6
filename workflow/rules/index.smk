# The index of a scale's retriever, index/{scale}/, and of its further ones, index/{scale}/{retriever}/. A server is no
# rule: training and evaluation lease one, on their machine or as a job of its own, and the last to let go ends it.
from turncredit.equipment import RetrieverConfig
from turncredit.retrieval.manifest import built


def all_retrievers(scale: str) -> dict[str, RetrieverConfig]:
    """The further retrievers of a scale by name, and its own as ""."""
    return {"": scale_of(scale).retriever} | scale_of(scale).retrievers


def retriever_of(wildcards) -> RetrieverConfig:
    """The retriever that a rule here is about."""
    return all_retrievers(wildcards.scale)[wildcards.get("retriever", "")]


def scales_of(kind: str) -> str:
    """Constraint: scales whose own retriever is of that kind."""
    return "|".join(s for s in SCALES if scale_of(s).retriever.kind == kind) or "(?!)"


def further_retrievers() -> str:
    """Constraint: names of further retrievers. They are Lucene's: a dense one is the scale's own."""
    found = {name: r.kind for s in SCALES for name, r in scale_of(s).retrievers.items()}
    for name in (name for name, kind in found.items() if kind != "lucene"):
        raise WorkflowError(f"retrievers.{name}: of kind faiss; make it the scale's own, `retriever`")
    return "|".join(sorted(found)) or "(?!)"


def passages_of(wildcards) -> list[str]:
    """What a Lucene index is made of: the passages, or an index that was fetched."""
    prebuilt = retriever_of(wildcards).prebuilt
    return [f"data/{wildcards.scale}/corpus.jsonl"] if prebuilt is None else records([prebuilt])


def vectors_of(wildcards, folder: str) -> list[str]:
    """What a FAISS index is made of: embedded shards, or an index that was fetched."""
    found = retriever_of(wildcards)
    if found.prebuilt is not None:
        return records([found.prebuilt])
    shards = [f"{folder}/embeddings/{n:05d}-of-{found.faiss.shards:05d}" for n in range(found.faiss.shards)]
    return [f"{shard}{suffix}" for shard in shards for suffix in (".npy", ".json")]


def encoder_of(wildcards) -> list[str]:
    """The record of a fetched encoder; none of a folder, or of a hub id that config/sources.yaml does not know."""
    encoder = retriever_of(wildcards).faiss.encoder
    return records(name for name, source in REGISTRY.sources.items() if encoder in (name, source.repository))


def embedded(scale: str) -> dict:
    """The settings that decide a passage's vector, whatever index it goes into."""
    found = scale_of(scale).retriever.faiss
    return {"encoder": found.encoder} | built(found.model_copy(update={"index": "flat"})) | {"index": None}


def index_of(scale: str, retriever: str = "") -> list[str]:
    """The index of the scale's own retriever, or of a further one."""
    folder = Path("index", scale, retriever)
    return [f"{folder}/index.json", f"{folder}/{all_retrievers(scale)[retriever].kind}"]


def indexes(scale: str, *experiments: str) -> list[str]:
    """The indexes that some experiments search in."""
    names = dict.fromkeys(scale_of(scale).experiments[name].retriever or "" for name in experiments)
    return [file for name in names for file in index_of(scale, name)]


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
        settings=lambda w: digest(embedded(w.scale), built(retriever_of(w).faiss), retriever_of(w).prebuilt),
    message:
        "index: FAISS over the vectors of the passages of scale {wildcards.scale}"
    shell:
        "turncredit index --scale {wildcards.scale} > {log} 2>&1"
