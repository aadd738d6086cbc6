"""File lists, digests and wildcard constraints of the Snakemake workflow, whose rules are in ``workflow/``."""
