"""Questions of one to three hops, each with the gold queries that answer it.

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

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from turncredit.errors import ConfigError, DataError, nearest
from turncredit.files import json_sha256
from turncredit.world.facts import ATTRIBUTES, LINKS, City, Facts, overlaps

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
_SHARES: dict[Split, float] = {"validation": 0.10, "test": 0.24}  # of the countries; the rest is for training


@dataclass(frozen=True, slots=True)
class Hop:
    """A gold query and what the passage found by it tells: the bridge entity or the answer."""

    query: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its accepted answers; ``plan`` is for demonstrations only."""

    id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    hops: int
    plan: tuple[Hop, ...]


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
    dealt yet: three-hop questions need both in one split.
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


DATASETS: dict[str, Callable[[Facts, tuple[City, ...]], Iterator[Phrase]]] = {
    "facts": _facts, "bridge": _bridge, "inverse": _inverse, "compose": _compose, "chain": _chain,
}


# -- files ------------------------------------------------------------------------------------


def write_questions(questions: list[Question], path: Path) -> None:
    """Write one question a line; the file must be the caller's own (see ``files.atomic``)."""
    lines = (json.dumps(asdict(question), ensure_ascii=False) for question in questions)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_questions(path: Path) -> list[Question]:
    """Read a question file and check every line.

    Raises:
        DataError: the file is missing, or a line is malformed, or an id stands twice; names file:line.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:  # a text may hold other line ends
            lines = list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}", "make it again: snakemake data") from error
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            question = _parse(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}:{number}: not a question: {type(error).__name__}: {error}",
                            "mend the line, or make the file again: snakemake data") from error
        if question.id in line_of:
            raise DataError(f"{path}:{number}: id {question.id!r} stands on line {line_of[question.id]} too",
                            "give each question an id of its own")
        line_of[question.id] = number
        questions.append(question)
    return questions


def _parse(record: Any) -> Question:
    if not isinstance(record, dict):
        raise TypeError("a line holds one JSON object")
    if unknown := sorted(record.keys() - set(Question.__dataclass_fields__)):
        raise ValueError(f"unknown key {unknown[0]!r}")
    answers, plan = record["answers"], record["plan"]
    texts = [record["id"], record["dataset"], record["question"], *answers,
             *(hop[key] for hop in plan for key in ("query", "evidence"))]
    if not isinstance(answers, list) or not answers or not isinstance(plan, list):
        raise ValueError("answers is a list of at least one text, plan is a list")
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError("every text is a string and none is blank")
    hops = record["hops"]
    if not isinstance(hops, int) or isinstance(hops, bool) or hops < 1:
        raise ValueError(f"hops is a whole number of at least 1, not {hops!r}")
    return Question(record["id"], record["dataset"], record["question"], tuple(answers), hops,
                    tuple(Hop(hop["query"], hop["evidence"]) for hop in plan))


def evaluation_ids(questions: Sequence[Question]) -> str:
    """sha256 of what is evaluated: datasets and question ids, in whatever order they come."""
    return ids_digest((question.dataset, question.id) for question in questions)


def ids_digest(asked: Iterable[tuple[str, str]]) -> str:
    """The same of (dataset, question id) pairs."""
    return json_sha256(sorted(asked))
