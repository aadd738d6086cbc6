"""One normaliser and the comparisons that use it (paper section 5.2, Search-R1's exact match)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces.

    A step that would leave nothing of a text is undone: the answer "A" stays "a" and "!" stays "!",
    so that two different such answers never become equal, and nothing equals an empty one.

    >>> normalise("The  U.S. Dollar!"), normalise("A."), normalise("?!")
    ('us dollar', 'a', '?!')
    """
    lowered = text.lower()
    plain = lowered.translate(_PUNCTUATION)
    bare = re.sub(r"\b(a|an|the)\b", " ", plain)
    return next((" ".join(form.split()) for form in (bare, plain, lowered) if form.strip()), "")


def exact_match(prediction: str, aliases: Sequence[str]) -> bool:
    """Whether the prediction equals any alias after normalisation; a blank alias equals nothing.

    >>> exact_match("the Euro", ["euro"]), exact_match("euro or dollar", ["euro"]), exact_match("", [""])
    (True, False, False)
    """
    predicted = normalise(prediction)
    return bool(predicted) and any(predicted == normalise(alias) for alias in aliases)


def f1(prediction: str, aliases: Sequence[str]) -> float:
    """Largest harmonic mean of word precision and recall over the aliases, in [0, 1].

    >>> f1("New York City", ["new york"])
    0.8
    """
    return max((_f1(normalise(prediction).split(), normalise(alias).split()) for alias in aliases), default=0.0)


def contains(text: str, aliases: Sequence[str]) -> bool:
    """Whether any alias is a substring of the text, case aside (the paper's rule; no word bounds).

    A blank alias is contained in nothing.

    >>> contains("Its currency is the EURO.", ["euro"]), contains("anything", ["", " "])
    (True, False)
    """
    folded = text.casefold()
    return any(alias.strip() and alias.strip().casefold() in folded for alias in aliases)


def _f1(predicted: list[str], wanted: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * common / (len(predicted) + len(wanted)) if common else 0.0
