# Tables are made from collected runs, like the figures.


rule table:
    input:
        runs=lambda w: files_of_page(w.scale, TABLES[w.name]),
        reported=REPORTED,
        code=DRAWING,
    output:
        csv="paper_tables/{scale}/{name}.csv",
        md=report(
            "paper_tables/{scale}/{name}.md",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{name}", "scale": "{scale}"},
        ),
        tex="paper_tables/{scale}/{name}.tex",
    log:
        "logs/{scale}/tables/{name}.log",
    wildcard_constraints:
        name="|".join(TABLES),
    conda:
        "../../envs/core.yaml"
    params:
        folders=lambda w: collected(w.scale, TABLES[w.name]),
    message:
        "table: {wildcards.name} from {params.folders}"
    shell:
        "turncredit table {wildcards.name} {params.folders} --scale {wildcards.scale} > {log} 2>&1"
