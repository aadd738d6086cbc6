# A figure or table that there is not: the call ends with the nearest name, where Snakemake would know none.


rule mistyped_page:
    input:
        lambda w: mistyped(w.folder, w.within, w.file),
    output:
        "{folder}/{within}/{file}",
    wildcard_constraints:
        folder=no_page(),
        within="[^/]+",
        file="[^/]+",
