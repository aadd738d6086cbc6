"""Figures of the paper and of this study: learning curves, final scores, the effects of placement and content."""
