# Real data. `snakemake fetch` downloads what a scale reads, on a machine with a network (the login node of a cluster);
# the rest of the workflow reads the folder of downloads and needs none.
from turncredit.data.sources import load_registry

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


localrules:
    fetch,
    fetch_source,


rule fetch:
    input:
        lambda w: records(REGISTRY.needed(scale_of(config["scale"]))),


rule fetch_source:
    output:
        f"{REGISTRY.downloads}/{{source}}/fetched.json",
    log:
        "logs/fetch/{source}.log",
    wildcard_constraints:
        source="|".join(REGISTRY.sources),
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: digest(REGISTRY.sources[w.source].model_dump(exclude={"title", "licence", "note"})),
    message:
        "fetch: {wildcards.source}"
    shell:
        "turncredit fetch {wildcards.source} 2>&1 | tee {log}"
