"""Strict configuration models, from YAML to one resolved run."""
