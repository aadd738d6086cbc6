"""What of a query goes to Lucene."""

from __future__ import annotations

import re

MAX_CHARACTERS = 1000  # hence fewer than the 1,024 terms that Lucene takes
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def clean_query(text: str, max_words: int) -> tuple[str, bool]:
    """The query on one line, cut to ``max_words`` words, and whether it was cut.

    Control characters and lone surrogates become blanks. Lucene's operators need no escape: the
    query is taken as a bag of words, never parsed.

    >>> clean_query("capital of\\n Kenya", 64)
    ('capital of Kenya', False)
    >>> clean_query("a b c", 2)
    ('a b', True)
    """
    words = _CONTROL.sub(" ", text).split()
    whole = " ".join(words)
    kept = " ".join(words[:max_words])[:MAX_CHARACTERS].rstrip()
    return kept, kept != whole
