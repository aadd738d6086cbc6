"""A renamed episode says the same of other names: of the same kinds, the same way throughout."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.miniature.facts import ATTRIBUTES, LINKS, load_facts
from turncredit.miniature.passages import corpus_cities, make_passages
from turncredit.miniature.renaming import Renamer
from turncredit.tasks.search import protocol as search
from turncredit.tasks.tags import SEARCH, TOOL
from turncredit.tasks.tool_search import protocol as tool_search

KINDS = {"Chad": "country", "Guinea": "country", "Guinea-Bissau": "country", "New Zealand": "country",
         "Bissau": "city", "Wellington": "city", "Franc": "currency", "Dollar": "currency"}
SMALL = Renamer(KINDS)
TEXTS = st.lists(st.sampled_from([*KINDS, "of", " ", ",", "\n", "New", "Chadian", "</search>", "é", "_"])).map("".join)


@pytest.fixture(scope="module")
def world() -> Renamer:
    facts = load_facts()
    return Renamer.of(facts, (city.name for city in corpus_cities(facts, 600)))


@given(TEXTS)
def test_the_pieces_of_a_text_join_to_it(text: str) -> None:
    pieces = SMALL.pieces(text)
    assert "".join(piece for piece, _ in pieces) == text
    assert all(piece for piece, _ in pieces)
    assert all(piece in KINDS for piece, is_name in pieces if is_name)
    assert SMALL.names_in(text) == [piece for piece, is_name in pieces if is_name]


def test_names_stand_between_word_borders_and_the_longest_wins() -> None:
    assert SMALL.names_in("Guinea-Bissau, Guinea and Bissau") == ["Guinea-Bissau", "Guinea", "Bissau"]
    assert SMALL.names_in("Chadian chad New Zealander Chad_") == []
    assert SMALL.names_in("New New Zealand</search>") == ["New Zealand"]


@given(TEXTS, st.integers(0, 9))
def test_only_names_change_each_for_one_of_its_kind(text: str, seed: int) -> None:
    new = SMALL.rename([text], random.Random(seed))[0]
    plain = [re.escape(piece) if not is_name else f"({'|'.join(map(re.escape, SMALL.names_of[SMALL.kind(piece)]))})"
             for piece, is_name in SMALL.pieces(text)]
    assert re.fullmatch("".join(plain), new)


@given(st.lists(TEXTS, max_size=4), st.integers(0, 9))
def test_equal_names_stay_equal_in_all_texts_of_an_episode(texts: list[str], seed: int) -> None:
    names = [name for text in texts for name in SMALL.names_in(text)]
    apart = SMALL.rename([*texts, *names], random.Random(seed))
    other = dict(zip(names, apart[len(texts):], strict=True))
    expected = ["".join(other[piece] if is_name else piece for piece, is_name in SMALL.pieces(text)) for text in texts]
    assert apart[:len(texts)] == expected


def test_a_renaming_is_the_seeds_and_touches_no_other_generator() -> None:
    state = random.getstate()
    texts = ["The currency of Chad is Franc.", "New Zealand has the Dollar."]
    assert SMALL.rename(texts, random.Random(3)) == SMALL.rename(texts, random.Random(3))
    assert len({tuple(SMALL.rename(texts, random.Random(seed))) for seed in range(20)}) > 5
    assert random.getstate() == state


def test_every_name_of_the_world_is_one_name(world: Renamer) -> None:
    facts = load_facts()
    for names in world.names_of.values():
        assert all(world.names_in(name) == [name] for name in names)
    assert {"country", "city", "currency", "language"} == set(world.names_of)
    assert all(world.kind(name) == "country" for name in facts.countries)
    assert all(value in world.names_in(value) for value in facts.values.values())


def test_a_passage_holds_its_names_and_nothing_else_is_one(world: Renamer) -> None:
    facts = load_facts()
    for passage in make_passages(facts, corpus_cities(facts, 600)):
        document = passage.document()
        assert world.names_in(document.title) == [document.title]
        assert document.title in world.names_in(document.text)


def test_no_word_of_a_protocol_is_a_name(world: Renamer) -> None:
    relations = [*ATTRIBUTES, *LINKS, "country whose", "country in which", "lies", "is"]
    fixed = [*(f"<{name}>" for name in (*SEARCH.names, *TOOL.names)),
             "Question: What is the", "Doc 1(Title: Doc 2(Title:",
             *search.RULES.remarks.values(), *tool_search.RULES.remarks.values(), tool_search.RULES.instruction,
             tool_search.RULES.hint,
             '{"name": "wiki_search", "args": {"query": "', " find", " unclear", *relations]
    assert [name for text in fixed for name in world.names_in(text)] == []
