# What rules are made of: downloads, passages, indexes, policies. Functions alone; the rules are in files of their own.
from turncredit.data.sources import load_registry
from turncredit.config.retriever import RetrieverConfig
from turncredit.retrieval.manifest import build_settings

try:
    REGISTRY = load_registry(Path())
except ConfigError as error:
    raise WorkflowError(str(error)) from None


def records(sources) -> list[str]:
    """What says that sources were fetched whole."""
    return [f"{REGISTRY.downloads}/{source}/fetched.json" for source in sources]


def materials(scale: str) -> list[str]:
    """The sources that a scale's questions and passages are made of; none where they are made here."""
    settings = scale_of(scale)
    if settings.questions is None:
        return []
    try:
        return list(dict.fromkeys([*map(REGISTRY.source_of, settings.datasets), settings.retriever.corpus]))
    except ConfigError as error:
        raise WorkflowError(str(error)) from None


def world_settings(scale: str) -> list:
    """What decides those files."""
    settings = scale_of(scale)
    if settings.questions is None:
        return [settings.world]
    trained_on = {name for experiment in settings.experiments.values() for name in experiment.train_on}
    return [settings.questions, settings.retriever.corpus, sorted(trained_on)]


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
    return {"encoder": found.encoder} | build_settings(found.model_copy(update={"index": "flat"})) | {"index": None}


def index_of(scale: str, retriever: str = "") -> list[str]:
    """The index of the scale's own retriever, or of a further one."""
    folder = Path("index", scale, retriever)
    return [f"{folder}/index.json", f"{folder}/{all_retrievers(scale)[retriever].kind}"]


def indexes(scale: str, *experiments: str) -> list[str]:
    """The indexes that some experiments search in."""
    names = dict.fromkeys(scale_of(scale).experiments[name].retriever or "" for name in experiments)
    return [file for name in names for file in index_of(scale, name)]


def source_of_policy(name: str) -> list[str]:
    """The record of a fetched policy; none of a folder, or of a hub id that config/sources.yaml does not know."""
    return records(source for source, found in REGISTRY.sources.items() if found.repository == name and not found.files)


def played_by(wildcards) -> str:
    """The experiment whose task a policy of others plays."""
    return scale_of(wildcards.scale).checkpoint(wildcards.checkpoint).experiment
