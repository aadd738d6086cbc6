"""The two-turn tool agent of the case study (appendix E)."""
