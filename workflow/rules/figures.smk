# Figures are made from collected runs and the reporting code: editing that code plots again, and trains nothing.
# Each figure has its own rule, because each has its own caption in the report.

for _name, _uses in FIGURES.items():

    rule:
        name:
            f"figure_{_name}"
        input:
            runs=lambda w, uses=_uses: RUNS[w.scale].page_inputs(uses),
            reported=REPORTED,
            code=REPORTING,
        output:
            pdf=f"figures/{{scale}}/{_name}.pdf",
            png=report(
                f"figures/{{scale}}/{_name}.png",
                caption=f"../report/{_name}.rst",
                category="Figures",
                labels={"figure": _name, "scale": "{scale}"},
            ),
            csv=f"figures/{{scale}}/{_name}.csv",
        log:
            f"logs/{{scale}}/figures/{_name}.log",
        conda:
            "../../envs/core.yaml"
        params:
            name=_name,
            folders=lambda w, uses=_uses: RUNS[w.scale].collected(uses),
        message:
            "figure: {params.name} from {params.folders}"
        shell:
            "turncredit figure {params.name} {params.folders} --scale {wildcards.scale} > {log} 2>&1"
