"""Plays episodes of a task with an engine, in batches or asynchronously."""
