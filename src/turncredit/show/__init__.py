"""Whole episodes for people: what was said, what it earned, and the credit of each turn under every algorithm."""
