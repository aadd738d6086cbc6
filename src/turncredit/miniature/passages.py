"""Short encyclopaedia passages: one fact a passage, so that a query has one right passage."""

from __future__ import annotations

from collections.abc import Iterator

from turncredit.data.corpus import Passage
from turncredit.miniature.facts import RELATIONS, City, Country, Facts


def corpus_cities(facts: Facts, count: int) -> tuple[City, ...]:
    """The cities that get a passage: the largest of each country, then the second largest, ..."""
    ranked = [(rank, city.country, city) for cities in facts.cities.values()
              for rank, city in enumerate(city for city in cities if city.unique)]
    return tuple(city for *_, city in sorted(ranked, key=lambda item: item[:2])[:count])


def make_passages(facts: Facts, cities: tuple[City, ...]) -> list[Passage]:
    """All passages, countries first, with ids "00000", "00001", ... in order."""
    told = [pair for country in facts.countries.values() for pair in _country(facts, country)]
    told += [(city.name, f"{city.name} is a city in {city.country} with "
                         f"{max(1, round(city.population / 1000))} thousand people.") for city in cities]
    return [Passage.of(f"{n:05d}", title, text) for n, (title, text) in enumerate(told)]


def _country(facts: Facts, country: Country) -> Iterator[tuple[str, str]]:
    name = country.name
    yield name, f"{name} lies in {country.continent}."
    if country.domain:
        yield name, f"The domain of {name} is {country.domain}."
    if country.calling_code:
        yield name, f"The prefix of {name} is {country.calling_code}."
    yield name, f"The area of {name} is {country.area} square kilometres."
    yield name, f"The population of {name} is {round(country.population / 1000)} thousand."
    if country.neighbours:
        yield name, f"{name} borders {', '.join(country.neighbours[:4])}."
    # Last, since equal scores are in this order: naming the country alone finds none of these.
    for relation in RELATIONS:
        if (value := facts.values.get((name, relation))) is not None:
            yield name, f"The {relation} of {name} is {value}."
