"""One normaliser: what counts as the same answer."""

from __future__ import annotations

import pytest

from turncredit.text_matching import contains, exact_match, f1, normalise


@pytest.mark.parametrize(("text", "normal"), [
    ("The Euro", "euro"),
    ("  An   apple,\ta day ", "apple day"),
    ("U.S.", "us"),
    ("Theatre", "theatre"),  # articles are words, not letters
    ("São Tomé", "são tomé"),
    ("A", "a"),  # a step that leaves nothing is undone
    ("A.", "a"),
    ("The A", "the a"),
    ("!?", "!?"),
    ("", ""),
    (" \n ", ""),
])
def test_normal_forms(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(("prediction", "aliases", "equal"), [
    ("the EURO.", ["Euro"], True),
    ("Euro", ["Dollar", "euro"], True),
    ("Euro or Dollar", ["Euro", "Dollar"], False),  # a list of guesses is no answer
    ("Euros", ["Euro"], False),
    ("", ["Euro"], False),
    ("A", ["A"], True),
    ("the", ["A"], False),  # both are emptied by the plain rule, yet differ
    ("", ["A"], False),
    ("!", ["?"], False),
    ("", [""], False),
    ("   ", [" "], False),
    ("Euro", [], False),
])
def test_exact_match(prediction: str, aliases: list[str], equal: bool) -> None:
    assert exact_match(prediction, aliases) is equal


def test_f1_is_the_best_word_overlap() -> None:
    assert f1("New York City", ["york"]) == pytest.approx(2 * 1 / 4)
    assert f1("New York City", ["york", "new york"]) == pytest.approx(2 * 2 / 5)
    assert f1("the Euro", ["Euro"]) == 1.0
    assert f1("new new", ["new"]) == pytest.approx(2 * 1 / 3)  # a repeated word counts as often as in both
    assert f1("", [""]) == f1("", ["Euro"]) == f1("Euro", []) == 0.0


@pytest.mark.parametrize(("text", "aliases", "found"), [
    ("its currency is the EURO", ["Euro"], True),
    ("Neurology", ["euro"], True),  # the paper's rule knows no word bounds
    ("U.S. dollar", ["US dollar"], False),  # nor punctuation
    ("any text", [""], False),
    ("any text", [" "], False),
    ("any text", ["", "text"], True),
    ("Rome", [" rome "], True),
    ("Straße", ["STRASSE"], True),
    ("", ["x"], False),
])
def test_contains(text: str, aliases: list[str], found: bool) -> None:
    assert contains(text, aliases) is found
