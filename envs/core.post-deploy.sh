#!/usr/bin/env bash
# Snakemake runs this from the clone, in each conda environment that it makes (--software-deployment-method conda).
set -euo pipefail
pip install --quiet --no-deps --no-build-isolation -e .
