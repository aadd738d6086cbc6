# Tables are made, like figures, from collected runs and the reporting code.


rule table:
    input:
        runs=lambda w: RUNS[w.scale].page_inputs(TABLES[w.name]),
        reported=REPORTED,
        code=REPORTING,
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
        name=one_of(TABLES),
    conda:
        "../../envs/core.yaml"
    params:
        folders=lambda w: RUNS[w.scale].collected(TABLES[w.name]),
    message:
        "table: {wildcards.name} from {params.folders}"
    shell:
        "turncredit table {wildcards.name} {params.folders} --scale {wildcards.scale} > {log} 2>&1"
