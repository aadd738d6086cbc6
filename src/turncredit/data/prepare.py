"""Prepares the data files of a scale from fetched sources.

The files have the form of the miniature world's: ``corpus.jsonl``, ``questions/{dataset}.{split}.jsonl``, and
``world.json``, which is written last and records their hashes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

from turncredit.config.data import QuestionsConfig
from turncredit.config.load import Scale
from turncredit.data.fetch import fetched_file, read_record
from turncredit.data.formats import extract_corpus, read_rows
from turncredit.data.questions import SPLITS, Split, chance_level, write_questions
from turncredit.data.sources import Registry
from turncredit.errors import ConfigError, DataError
from turncredit.files import atomic, sha256, write_text
from turncredit.text_matching import normalise
from turncredit.types import Question

log = logging.getLogger(__name__)

Sets = dict[str, dict[Split, list[Question]]]  # dataset -> split -> questions


def prepare(scale: Scale, registry: Registry, out_dir: Path) -> None:
    """Write the corpus and the question files of a scale, and last ``world.json``.

    The same sources and settings give the same bytes. Datasets that an experiment trains on get all three splits,
    others ``test`` only. No question is in two of train, validation and test: a question that is also in test is
    dropped from train and validation, one that is also in validation is dropped from train, and ``world.json`` counts
    the dropped ones.

    Raises:
        ConfigError: a dataset or the corpus of the scale is not in the registry, or the scale names no real questions.
        DataError: a source is missing, altered or malformed, or a split would be empty.
    """
    settings, corpus = scale.questions, scale.retriever.corpus
    if settings is None or corpus is None:
        raise ConfigError(f"scale {scale.name!r}: {'questions' if settings is None else 'retriever.corpus'} is missing",
                          "name question sets and a corpus of config/sources.yaml, or use a miniature world")
    trained_on = {name for experiment in scale.experiments.values() for name in experiment.train_on}
    published: Sets = {name: {split: list(_questions(registry, name, split)) for split in
                              (SPLITS if name in trained_on else ("test",))} for name in scale.datasets}
    sets, dropped = choose(published, settings)
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
        "questions": {name: {split: len(some) for split, some in of_split.items()} for name, of_split in sets.items()},
        "dropped": dropped,
        "chance": {name: chance_level(of_split.get("train", []), of_split["test"]) for name, of_split in sets.items()},
        "sha256": hashes,
    }
    write_text(out_dir / "world.json", json.dumps(summary, indent=2) + "\n")


def choose(published: Sets, settings: QuestionsConfig) -> tuple[Sets, dict[str, dict[str, int]]]:
    """Choose the questions of each split such that no question is in two splits.

    Test questions are kept. Train and validation questions that are in the test split of any dataset are dropped. A
    dataset without a validation split gives some of its training questions. Under a limit, a question is chosen by its
    text and ``questions.seed``, not by its row.

    Returns:
        The chosen questions, and for each dataset how many were dropped from train and from validation.

    Raises:
        DataError: a dataset that is trained on has no train or validation question left.
    """
    tested = _texts(question for of_split in published.values() for question in of_split["test"])
    trained = [name for name, of_split in published.items() if "train" in of_split]
    validation: dict[str, list[Question]] = {}
    dropped: dict[str, dict[str, int]] = {}
    for name in trained:
        own = published[name]["validation"] or published[name]["train"]
        kept = _without(own, tested)
        validation[name] = _limited(kept, settings.validation_questions, settings.seed)
        dropped[name] = {"validation": len(own) - len(kept)} if published[name]["validation"] else {}
    validated = _texts(question for questions in validation.values() for question in questions)
    chosen: Sets = {}
    for name, of_split in published.items():
        chosen[name] = {"test": _limited(of_split["test"], settings.test_questions, settings.seed)}
        if name in trained:
            left = _without(of_split["train"], tested | validated)
            moved = 0 if of_split["validation"] else len(validation[name])
            dropped[name]["train"] = len(of_split["train"]) - len(left) - moved
            chosen[name] = {"train": _limited(left, settings.train_questions, settings.seed),
                            "validation": validation[name], **chosen[name]}
        for split, questions in chosen[name].items():
            if not questions:
                raise DataError(f"{name}: no {split} question is left", "lower questions.validation_questions")
    return chosen, dropped


def _texts(questions: Iterator[Question]) -> set[str]:
    return {normalise(question.question) for question in questions}


def _without(questions: list[Question], texts: set[str]) -> list[Question]:
    return [question for question in questions if normalise(question.question) not in texts]


def _questions(registry: Registry, dataset: str, split: Split) -> Iterator[Question]:
    """The questions of a dataset's split. An id names the dataset, the published file and the row (from 0)."""
    for source, file, entry in registry.files_of(dataset, split):
        path = fetched_file(registry, source, file)
        rows = [row for row in read_rows(path, registry.sources[source].format, entry.rows) if row.dataset == dataset]
        for number, row in enumerate(rows):
            yield Question(f"{dataset}-{Path(file).stem.partition('-')[0]}-{number}", dataset, row.question,
                           row.answers, hops=1 + (dataset in registry.several_hops), plan=())


def _limited(questions: list[Question], limit: int | None, seed: int) -> list[Question]:
    """At most ``limit`` of the questions, in order; equal texts stay together where the limit allows."""
    if limit is None or limit >= len(questions):
        return questions
    order = sorted(range(len(questions)), key=lambda n: (_draw(questions[n], seed), n))
    return [questions[n] for n in sorted(order[:limit])]


def _draw(question: Question, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{normalise(question.question)}".encode()).digest()


def _check_disjoint(sets: Sets) -> None:
    """Check again, on what is written, that splits are disjoint.

    Raises:
        DataError: a question is in two splits.
    """
    split_of: dict[str, Split] = {}
    for split in SPLITS:
        for question in (question for of_split in sets.values() for question in of_split.get(split, ())):
            first = split_of.setdefault(normalise(question.question), split)
            if first != split:
                raise DataError(f"{question.id}: in both {first} and {split}: {question.question!r}",
                                "report it: splits must be disjoint")


def _corpus(registry: Registry, name: str, output: Path) -> str:
    """Extract the passages, unless they are there already, and return their sha256."""
    file, entry = next(iter(registry.source(name).files.items()), ("", None))
    if entry is None or entry.inside is None:
        raise ConfigError(f"retriever.corpus: {name!r} is not a corpus", "name a source of the format wiki18")
    if output.exists() and entry.inside.sha256 is not None and sha256(output) == entry.inside.sha256:
        log.info("%s: already there", output)
        return entry.inside.sha256
    extract_corpus(fetched_file(registry, name, file), entry.inside, output)
    return sha256(output)


def _origin(registry: Registry, name: str) -> dict[str, object]:
    """Repository, revision and file hashes of a source; the mirror that served it does not matter."""
    record = read_record(Path(registry.downloads, name))
    return {"repository": record["repository"], "revision": record["revision"],
            "sha256": {file: entry["sha256"] for file, entry in record["files"].items()}}
