# Drawing reads collected runs only, and the code that draws: editing that code redraws, and trains nothing.


rule figure:
    input:
        runs=lambda w: collected_files(w.scale, uses(FIGURES, w.name)),
        code="src/turncredit/reporting/figures.py",
    output:
        pdf="figures/{scale}/{name}.pdf",
        png=report(
            "figures/{scale}/{name}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{name}", "scale": "{scale}"},
        ),
        csv="figures/{scale}/{name}.csv",
    log:
        "logs/{scale}/figures/{name}.log",
    conda:
        "../../envs/core.yaml"
    params:
        folders=lambda w: collected(w.scale, uses(FIGURES, w.name)),
    message:
        "figure: {wildcards.name} from {params.folders}"
    shell:
        "turncredit figure {wildcards.name} --scale {wildcards.scale} {params.folders} > {log} 2>&1"
