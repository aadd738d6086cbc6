"""Benchmarks of our training step, and comparisons with TRL, vLLM and transformers on the same machine."""
