"""Retrieval: a Lucene index, a server in a process of its own, and its client."""
