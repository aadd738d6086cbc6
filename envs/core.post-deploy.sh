#!/usr/bin/env bash
# Snakemake runs this in the conda environment it made (--software-deployment-method conda), from the clone.
set -euo pipefail
pip install --quiet --no-deps --no-build-isolation -e .
