"""Tables of the paper and of this study, and their three forms: Markdown, LaTeX and CSV."""
