"""Turn-level credit assignment for multi-turn LLM agents: a replication of arXiv 2505.11821."""

__version__ = "0.1.0"
