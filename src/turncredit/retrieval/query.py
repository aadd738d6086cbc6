"""What of a query goes to Lucene."""

from __future__ import annotations

import re

_MAX_WORD = 64  # characters; a longer "word" is no word
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
    kept = [word[:_MAX_WORD] for word in words[:max_words]]
    return " ".join(kept), kept != words
