"""Rewards: pure functions from a transcript to numbers."""
