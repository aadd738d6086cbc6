"""From fetched sources to the files of a scale: the same forms as those of the mini world."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from turncredit.config.data import QuestionsConfig
from turncredit.config.load import Scale
from turncredit.data.fetch import fetched, read_record
from turncredit.data.formats import extract_corpus, read_rows
from turncredit.data.questions import write_questions
from turncredit.data.sources import Registry
from turncredit.errors import ConfigError, DataError
from turncredit.files import atomic, sha256, write_text
from turncredit.miniature.build import chance_level
from turncredit.miniature.questions import SPLITS, Split
from turncredit.rewards.matching import normalise
from turncredit.types import Question

log = logging.getLogger(__name__)

Sets = dict[str, dict[Split, list[Question]]]  # dataset -> split -> questions


def prepare(scale: Scale, registry: Registry, out_dir: Path) -> None:
    """Write ``corpus.jsonl``, ``questions/{dataset}.{split}.jsonl`` and, last, ``world.json``.

    The same sources and settings give the same bytes. Sets that an experiment trains on have all three splits, the
    others ``test`` alone. No question is in two of train, validation and test: what would be is left out of train,
    then of validation, and counted in ``world.json``.

    Raises:
        ConfigError: the scale names a set or corpus that the registry lacks, or no real questions at all.
        DataError: a source is missing, altered or malformed, or too few questions are left.
    """
    settings, corpus = scale.questions, scale.retriever.corpus
    if settings is None or corpus is None:
        raise ConfigError(f"scale {scale.name!r}: {'questions' if settings is None else 'retriever.corpus'} is missing",
                          "name real question sets and a corpus of config/sources.yaml, or make a world instead")
    trained_on = {name for experiment in scale.experiments.values() for name in experiment.train_on}
    read: Sets = {name: {split: list(_questions(registry, name, split)) for split in
                         (SPLITS if name in trained_on else ("test",))} for name in scale.datasets}
    sets, dropped = choose(read, settings)
    _check_disjoint(sets)

    hashes = {"corpus.jsonl": _corpus(registry, corpus, out_dir / "corpus.jsonl")}
    for name, of_split in sets.items():
        for split, questions in of_split.items():
            path = out_dir / "questions" / f"{name}.{split}.jsonl"
            with atomic(path) as temporary:
                write_questions(questions, temporary)
            hashes[path.relative_to(out_dir).as_posix()] = sha256(path)
    sources = dict.fromkeys([*map(registry.source_of, scale.datasets), corpus])
    summary = {
        "config": settings.model_dump(mode="json"),
        "sources": {name: _origin(registry, name) for name in sources},
        "passages": next(file.inside.rows for file in registry.source(corpus).files.values() if file.inside),
        "questions": {name: {split: len(found) for split, found in splits.items()} for name, splits in sets.items()},
        "dropped": dropped,
        "chance": {name: chance_level(found.get("train", []), found["test"]) for name, found in sets.items()},
        "sha256": hashes,
    }
    write_text(out_dir / "world.json", json.dumps(summary, indent=2) + "\n")


def choose(read: Sets, settings: QuestionsConfig) -> tuple[Sets, dict[str, dict[str, int]]]:
    """Test questions as they are, validation and training questions that are in no test of any set.

    A set without a validation split of its own gives some of its training questions. Which questions are chosen where
    a limit leaves some out is decided by their text and ``questions.seed``, not by their place.

    Returns:
        The chosen questions, and how many were left out of each set's train and validation for standing in another.

    Raises:
        DataError: a set that is trained on has no train or validation question left.
    """
    tested = {normalise(question.question) for of_split in read.values() for question in of_split["test"]}
    trained = [name for name, of_split in read.items() if "train" in of_split]
    validation: dict[str, list[Question]] = {}
    dropped: dict[str, dict[str, int]] = {}
    for name in trained:
        own = read[name]["validation"] or read[name]["train"]
        kept = _without(own, tested)
        validation[name] = _some(kept, settings.validation_questions, settings.seed)
        dropped[name] = {"validation": len(own) - len(kept)} if read[name]["validation"] else {}
    held = {normalise(question.question) for questions in validation.values() for question in questions}
    chosen: Sets = {}
    for name, of_split in read.items():
        chosen[name] = {"test": _some(of_split["test"], settings.test_questions, settings.seed)}
        if name in trained:
            left = _without(of_split["train"], tested | held)
            moved = 0 if of_split["validation"] else len(validation[name])
            dropped[name]["train"] = len(of_split["train"]) - len(left) - moved
            chosen[name] = {"train": _some(left, settings.train_questions, settings.seed),
                            "validation": validation[name], **chosen[name]}
        for split, questions in chosen[name].items():
            if not questions:
                raise DataError(f"{name}: no {split} question is left", "lower questions.validation_questions")
    return chosen, dropped


def _without(questions: list[Question], taken: set[str]) -> list[Question]:
    return [question for question in questions if normalise(question.question) not in taken]


def _questions(registry: Registry, dataset: str, split: Split) -> Iterator[Question]:
    """A set's questions of one split; the id names set, split and row (from 0) of the published file."""
    for source, file, entry in registry.files_of(dataset, split):
        path = fetched(registry, source, file)
        rows = [row for row in read_rows(path, registry.sources[source].format, entry.rows) if row.dataset == dataset]
        for number, row in enumerate(rows):
            yield Question(f"{dataset}-{Path(file).stem.partition('-')[0]}-{number}", dataset, row.question,
                           row.answers, hops=1 + (dataset in registry.several_hops), plan=())


def _some(questions: list[Question], limit: int | None, seed: int) -> list[Question]:
    """At most ``limit`` of them, in their order; equal texts stay together as far as the limit lets them."""
    if limit is None or limit >= len(questions):
        return questions
    order = sorted(range(len(questions)), key=lambda n: (_lot(questions[n], seed), n))
    return [questions[n] for n in sorted(order[:limit])]


def _lot(question: Question, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{normalise(question.question)}".encode()).digest()


def _check_disjoint(sets: Sets) -> None:
    """The law that ``choose`` keeps, checked on what is written.

    Raises:
        DataError: a question stands in two splits.
    """
    seen: dict[str, Split] = {}
    for split in SPLITS:
        for question in _all(sets, split):
            text = normalise(question.question)
            if seen.setdefault(text, split) != split:
                raise DataError(f"{question.id}: stands in {seen[text]} and in {split}: {question.question!r}",
                                "report it: splits must be disjoint")


def _all(sets: Sets, split: Split) -> Iterable[Question]:
    return (question for of_split in sets.values() for question in of_split.get(split, ()))


def _corpus(registry: Registry, name: str, output: Path) -> str:
    """Unpack the passages unless they are there already, and give their sha256."""
    file, entry = next(iter(registry.source(name).files.items()), ("", None))
    if entry is None or entry.inside is None:
        raise ConfigError(f"retriever.corpus: {name!r} is no corpus", "name a source of the format wiki18")
    if output.exists() and entry.inside.sha256 is not None and sha256(output) == entry.inside.sha256:
        log.info("%s: is there already", output)
        return entry.inside.sha256
    extract_corpus(fetched(registry, name, file), entry.inside, output)
    return sha256(output)


def _origin(registry: Registry, name: str) -> dict[str, object]:
    """Where a source is from; not by which mirror it came."""
    record = read_record(Path(registry.downloads, name))
    return {"repository": record["repository"], "revision": record["revision"],
            "sha256": {file: entry["sha256"] for file, entry in record["files"].items()}}
