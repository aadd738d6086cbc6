"""Whole episodes of a run: which are kept, and the file that holds them."""
