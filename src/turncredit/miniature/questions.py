"""Questions of one to four hops, each with the gold queries that answer it.

A question asks for a noun phrase, and the phrase says how to find it from the inside out::

    What is the currency of the largest neighbour of the country whose capital is Nairobi?
                                                     1. country whose capital is Nairobi -> Kenya
                            2. largest neighbour of Kenya -> Ethiopia
            3. currency of Ethiopia -> Birr

So a gold query is made of the question's own words and of the evidence found before. Countries are
split once: all countries that a question touches are of its split, hence no question and no
(country, relation, value) is in two splits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from turncredit.data.questions import SPLITS, Split
from turncredit.errors import ConfigError, nearest
from turncredit.miniature.facts import ATTRIBUTES, LINKS, City, Facts, overlaps
from turncredit.seeding import derive_seed
from turncredit.types import Hop, Question

_SHARES: dict[Split, float] = {"validation": 0.10, "test": 0.24}  # of the countries; the rest is for training


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase, the countries that finding it touches, and the hops that find it."""

    text: str
    touched: tuple[str, ...]
    plan: tuple[Hop, ...] = ()

    @property
    def value(self) -> str:
        """What the phrase names."""
        return self.plan[-1].evidence if self.plan else self.text


def split_countries(facts: Facts, seed: int) -> dict[str, Split]:
    """The split of each country, the same for every dataset.

    A country is dealt together with the neighbours that a link leads to, as far as these are not
    dealt yet: questions of several hops need both in one split.
    """
    order = sorted(facts.countries)
    random.Random(f"{seed}/countries").shuffle(order)
    limits = {part: round(share * len(order)) for part, share in _SHARES.items()}
    split: dict[str, Split] = {}
    size: Counter[Split] = Counter()
    for name in order:
        part: Split = next((p for p in _SHARES if size[p] < limits[p]), "train")
        linked = (facts.values.get((name, link)) for link in LINKS)
        for country in (name, *linked):
            if country is not None and country not in split:
                split[country] = part
                size[part] += 1
    return split


def known_countries(facts: Facts, share: float, seed: int) -> frozenset[str]:
    """The countries whose facts a policy knows by heart, the given share of each split."""
    split_of = split_countries(facts, seed)
    known: set[str] = set()
    for split in SPLITS:
        names = sorted((name for name in split_of if split_of[name] == split),
                       key=lambda name: derive_seed(seed, "known", name))
        known.update(names[:round(share * len(names))])
    return frozenset(known)


def known_facts(facts: Facts, share: float, seed: int) -> list[Question]:
    """The questions of ``facts`` about known countries, of every split."""
    known = known_countries(facts, share, seed)
    found = make_questions(facts, (), "facts", seed, dict.fromkeys(SPLITS, len(facts.values)))
    return [question for split in SPLITS for question in found[split]
            if question.plan[0].query.partition(" of ")[2] in known]


def make_questions(facts: Facts, cities: tuple[City, ...], dataset: str, seed: int,
                   sizes: Mapping[Split, int]) -> dict[Split, list[Question]]:
    """The questions of a dataset, at most ``sizes`` of each split (all there are, if fewer).

    Raises:
        ConfigError: no such dataset.
    """
    if dataset not in DATASETS:
        raise ConfigError(f"world: no dataset {dataset!r}", nearest(dataset, DATASETS))
    split_of = split_countries(facts, seed)
    found: dict[Split, dict[str, Phrase]] = {split: {} for split in SPLITS}
    for phrase in DATASETS[dataset](facts, cities):
        splits = {split_of[country] for country in phrase.touched}
        if len(splits) == 1 and phrase.value.lower() not in phrase.text.lower():
            found[splits.pop()].setdefault(phrase.text, phrase)
    questions: dict[Split, list[Question]] = {}
    for split in SPLITS:
        phrases = _choose(list(found[split].values()), sizes[split],
                          random.Random(f"{seed}/{dataset}/{split}"))
        questions[split] = [
            Question(f"{dataset}-{split}-{n}", dataset, f"What is {phrase.text}?", (phrase.value,),
                     len(phrase.plan), phrase.plan)
            for n, phrase in enumerate(phrases)]
    return questions


def _choose(phrases: list[Phrase], size: int, rng: random.Random) -> list[Phrase]:
    """At most ``size`` phrases, each answer as often as any other while phrases last."""
    rng.shuffle(phrases)
    turn: Counter[str] = Counter()
    ranked: list[tuple[int, int, Phrase]] = []
    for phrase in phrases:
        ranked.append((turn[phrase.value], len(ranked), phrase))
        turn[phrase.value] += 1
    chosen = [phrase for *_, phrase in sorted(ranked, key=lambda item: item[:2])[:size]]
    rng.shuffle(chosen)
    return chosen


# -- the grammar of noun phrases --------------------------------------------------------------


def _countries(facts: Facts) -> Iterator[Phrase]:
    return (Phrase(name, (name,)) for name in facts.countries)


def _relation(facts: Facts, relation: str, of: Phrase) -> Iterator[Phrase]:
    """'the R of NP', if it is known."""
    value = facts.values.get((of.value, relation))
    if value is not None:
        touched = (*of.touched, value) if relation in LINKS else of.touched
        yield Phrase(f"the {relation} of {of.text}", touched,
                     (*of.plan, Hop(f"{relation} of {of.value}", value)))


def _attributes(facts: Facts, of: Phrase) -> Iterator[Phrase]:
    for relation in ATTRIBUTES:
        if facts.askable(of.value, relation):
            yield from _relation(facts, relation, of)


def _whose(facts: Facts, *relations: str) -> Iterator[Phrase]:
    """'the country whose R is V', where V names one country only."""
    for (country, relation), value in facts.values.items():
        if (relation in relations and facts.holders(relation, value) == 1
                and not overlaps(value, facts.countries)):
            text = f"country whose {relation} is {value}"
            yield Phrase(f"the {text}", (country,), (Hop(text, country),))


def _in_which(cities: tuple[City, ...]) -> Iterator[Phrase]:
    """'the country in which C lies'."""
    for city in cities:
        text = f"country in which {city.name} lies"
        yield Phrase(f"the {text}", (city.country,), (Hop(text, city.country),))


# -- the datasets -----------------------------------------------------------------------------


def _facts(facts: Facts, cities: tuple[City, ...]) -> Iterator[Phrase]:
    """An attribute of a country."""
    for country in _countries(facts):
        yield from _attributes(facts, country)


def _bridge(facts: Facts, cities: tuple[City, ...]) -> Iterator[Phrase]:
    """An attribute of a country that is named by its capital or one of its cities."""
    for country in (*_whose(facts, "capital"), *_in_which(cities)):
        yield from _attributes(facts, country)


def _inverse(facts: Facts, cities: tuple[City, ...]) -> Iterator[Phrase]:
    """The country that an attribute or a city names."""
    for country in (*_whose(facts, *ATTRIBUTES), *_in_which(cities)):
        if not overlaps(country.value, facts.countries.keys() - {country.value}):
            yield country


def _compose(facts: Facts, cities: tuple[City, ...]) -> Iterator[Phrase]:
    """An attribute of a country that is named by an attribute other than its capital."""
    for country in _whose(facts, *ATTRIBUTES[1:]):
        yield from _attributes(facts, country)


def _chain(facts: Facts, cities: tuple[City, ...]) -> Iterator[Phrase]:
    """An attribute of a neighbour of a country that is named by its capital or a city."""
    for country in (*_whose(facts, "capital"), *_in_which(cities)):
        for link in LINKS:
            for neighbour in _relation(facts, link, country):
                yield from _attributes(facts, neighbour)


def _long_chain(facts: Facts, cities: tuple[City, ...]) -> Iterator[Phrase]:
    """An attribute of a neighbour of a neighbour of a country that is named by its capital or a city.

    The three countries differ: a way back would make a shorter question.
    """
    for country in (*_whose(facts, "capital"), *_in_which(cities)):
        for link in LINKS:
            for neighbour in _relation(facts, link, country):
                for next_link in LINKS:
                    for third in _relation(facts, next_link, neighbour):
                        if third.value != country.value:
                            yield from _attributes(facts, third)


DATASETS: dict[str, Callable[[Facts, tuple[City, ...]], Iterator[Phrase]]] = {
    "facts": _facts, "bridge": _bridge, "inverse": _inverse, "compose": _compose, "chain": _chain,
    "long_chain": _long_chain,
}
