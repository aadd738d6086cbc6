# Real data. `snakemake fetch` downloads what a scale reads, on a machine with a network (the login node of a cluster);
# the rest of the workflow reads the folder of downloads and needs none.


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
