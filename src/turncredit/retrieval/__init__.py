"""Retrieval: BM25 and dense indexes, their server, its client and its lifecycle."""
