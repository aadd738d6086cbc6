# Downloads. `snakemake fetch` gets what a scale reads, on a machine with a network (a cluster's login node). All other
# rules read the downloads folder and need no network.


localrules:
    fetch,
    fetch_source,


rule fetch:
    input:
        lambda w: INPUTS[config["scale"]].fetched(REGISTRY.needed(SCALES[config["scale"]])),


rule fetch_source:
    output:
        f"{REGISTRY.downloads}/{{source}}/fetched.json",
    log:
        "logs/fetch/{source}.log",
    wildcard_constraints:
        source=one_of(REGISTRY.sources),
    conda:
        "../../envs/core.yaml"
    params:
        settings=lambda w: settings_hash(REGISTRY.sources[w.source].model_dump(exclude={"title", "licence", "note"})),
    message:
        "fetch: {wildcards.source}"
    shell:
        "turncredit fetch {wildcards.source} 2>&1 | tee {log}"
