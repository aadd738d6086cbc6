# What each run of a scale needs: printed, and written as CSV. The rule fails if a run cannot fit.


rule plan_of:
    input:
        expand("config/{name}.yaml", name=["algorithms", "models", "sources"]),
        "config/{scale}.yaml",
    output:
        "plans/{scale}.csv",
    log:
        "logs/{scale}/plan.log",
    conda:
        "../../envs/core.yaml"
    message:
        "plan: what each run of scale {wildcards.scale} needs"
    shell:
        "turncredit plan --scale {wildcards.scale} --output {output} 2>&1 | tee {log}"
