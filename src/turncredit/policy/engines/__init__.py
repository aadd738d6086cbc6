"""Sampling engines: transformers in the training process, or vLLM."""
