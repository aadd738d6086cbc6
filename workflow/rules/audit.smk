# The audit, the opening of the report, and the rules that copy results into the shipped folders.

HEADLINE_FIGURE = "learning"  # on the report's opening page and in README


rule audit_table:
    input:
        runs=lambda w: RUNS[w.scale].collected_files(),
        picture=lambda w: [f"figures/{w.scale}/{n}.png" for n in RUNS[w.scale].pages(FIGURES) if n == HEADLINE_FIGURE],
        reported=REPORTED,
        code=REPORTING,
    output:
        csv="paper_tables/{scale}/audit.csv",
        md=report(
            "paper_tables/{scale}/audit.md",
            caption="../report/audit.rst",
            category="Audit",
            labels={"table": "audit", "scale": "{scale}"},
        ),
        headline="paper_tables/{scale}/headline.txt",
        opening="paper_tables/{scale}/report.rst",
    log:
        "logs/{scale}/audit.log",
    conda:
        "../../envs/core.yaml"
    params:
        folders=lambda w: RUNS[w.scale].collected(),
        picture=lambda w, input: [f"--picture {path}" for path in input.picture],
    message:
        "audit: reported numbers and claims against {params.folders}"
    shell:
        "turncredit audit {params.folders} {params.picture} --scale {wildcards.scale} > {log} 2>&1"


rule audit:
    input:
        expand(rules.audit_table.output.md, scale=config["scale"]),
    log:
        expand("logs/{scale}/audit-shown.log", scale=config["scale"]),
    conda:
        "../../envs/core.yaml"
    message:
        "audit: {input}"
    shell:
        "tee {log} < {input}"


# Copies a/b/c to a/shipped/b/c, to be committed: first the runs, then the pages made from them.
SHIP = """
for file in {input}; do
    to=${{file/\\//\\/shipped\\/}}
    mkdir -p "$(dirname "$to")"
    cp "$file" "$to"
done > {log} 2>&1
"""


rule ship_runs:
    input:
        lambda w: RUNS[config["scale"]].collected_files(),
        lambda w: RUNS[config["scale"]].bench_files(),
    log:
        expand("logs/{scale}/ship-runs.log", scale=config["scale"]),
    conda:
        "../../envs/core.yaml"
    message:
        "ship: {input}"
    shell:
        SHIP


rule ship_pages:
    input:
        lambda w: expand(
            "figures/{scale}/{name}.{end}",
            scale=config["scale"],
            name=[*RUNS[config["scale"]].pages(FIGURES), *RUNS[config["scale"]].bench_pages()],
            end=["pdf", "png", "csv"],
        ),
        lambda w: expand(
            rules.table.output,
            scale=config["scale"],
            name=RUNS[config["scale"]].pages(TABLES),
        ),
        expand(
            [rules.audit_table.output.csv, rules.audit_table.output.md, rules.audit_table.output.headline],
            scale=config["scale"],
        ),
    log:
        expand("logs/{scale}/ship-pages.log", scale=config["scale"]),
    conda:
        "../../envs/core.yaml"
    message:
        "ship: {input}"
    shell:
        SHIP


# The results section of README.md, from the runs of this call (in `make ship`: the shipped ones).
rule readme:
    input:
        lambda w: RUNS[config["scale"]].collected_files(),
    log:
        expand("logs/{scale}/readme.log", scale=config["scale"]),
    conda:
        "../../envs/core.yaml"
    params:
        scale=config["scale"],
        folders=lambda w: RUNS[config["scale"]].collected(),
        pictures=lambda w: expand(
            "--picture figures/shipped/{scale}/{name}.png",
            scale=config["scale"],
            name=[HEADLINE_FIGURE],
        ),
    message:
        "readme: results of {params.folders}"
    shell:
        "turncredit readme {params.folders} {params.pictures} --scale {params.scale} > {log} 2>&1"
