# Unknown target: suggests the closest name.


rule unknown_page:
    input:
        lambda w: refuse_unknown_page(w.folder, w.within, w.file, SCALES),
    output:
        "{folder}/{within}/{file}",
    wildcard_constraints:
        folder=unknown_page_folder(SCALES),
        within="[^/]+",
        file="[^/]+",
