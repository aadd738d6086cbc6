"""The multi-turn search agent (section 6.2)."""
