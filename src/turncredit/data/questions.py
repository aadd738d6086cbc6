"""Question files: JSON Lines that are checked when read, their splits, and the identity of a question set."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from turncredit.data.checksums import checked_file, recorded_hashes
from turncredit.errors import DataError
from turncredit.files import question_ids_sha256
from turncredit.types import Hop, Item, Question

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


def write_questions(questions: list[Question], path: Path) -> None:
    """Write one question per line. Not atomic: pass a temporary file (see ``files.atomic``)."""
    lines = (json.dumps(asdict(question), ensure_ascii=False) for question in questions)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_questions(path: Path) -> list[Question]:
    """Read a question file and check every line.

    Raises:
        DataError: the file is missing, or a line is malformed or repeats an id (names file:line).
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:  # a question may hold other line ends
            lines = list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}", "make it again: snakemake --cores 2 data --config scale=...") from error
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            question = _parse(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}:{number}: not a question: {type(error).__name__}: {error}",
                            "correct the line, or make the file again: snakemake --cores 2 data --config scale=..."
                            ) from error
        if question.id in line_of:
            raise DataError(f"{path}:{number}: duplicate id {question.id!r}, first on line {line_of[question.id]}",
                            "give each question its own id")
        line_of[question.id] = number
        questions.append(question)
    return questions


def read_split(data: Path, split: str, datasets: Sequence[str] | None) -> list[Question]:
    """Read the questions of a split, of the named datasets or of all, and check the files against ``world.json``.

    Raises:
        DataError: a file is missing or differs from its recorded sha256, or there are no questions.
    """
    suffix = f".{split}.jsonl"
    names = (sorted(recorded_hashes(data)) if datasets is None else
             [f"questions/{dataset}{suffix}" for dataset in datasets])
    files = [checked_file(data, name) for name in names if name.endswith(suffix)]
    questions = [question for file in files for question in read_questions(file)]
    if not questions:
        raise DataError(f"{data}: no {split} questions for {', '.join(datasets or ['any dataset'])}",
                        "raise the scale's question counts, or name datasets that have some")
    return questions


def _parse(record: Any) -> Question:
    if not isinstance(record, dict):
        raise TypeError("expected one JSON object")
    if unknown := sorted(record.keys() - set(Question.__dataclass_fields__)):
        raise ValueError(f"unknown key {unknown[0]!r}")
    answers, plan = record["answers"], record["plan"]
    texts = [record["id"], record["dataset"], record["question"], *answers,
             *(hop[key] for hop in plan for key in ("query", "evidence"))]
    if not isinstance(answers, list) or not answers or not isinstance(plan, list):
        raise ValueError("answers must be a list of at least one string, and plan a list")
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError("every text must be a string and not blank")
    hops = record["hops"]
    if not isinstance(hops, int) or isinstance(hops, bool) or hops < 1:
        raise ValueError(f"hops must be a whole number of at least 1, not {hops!r}")
    return Question(record["id"], record["dataset"], record["question"], tuple(answers), hops,
                    tuple(Hop(hop["query"], hop["evidence"]) for hop in plan))


def chance_level(train: Sequence[Question], test: Sequence[Question]) -> float:
    """Share of test questions that the best constant answer gets right.

    The larger of two guesses: the most frequent answer of the training questions, and the most frequent answer of the
    test questions themselves (no constant answer can do better).
    """
    if not test:
        return 0.0
    right = Counter(answer for question in test for answer in question.answers)
    usual = Counter(answer for question in train for answer in question.answers).most_common(1)
    of_train = right[usual[0][0]] if usual else 0
    return max(of_train, right.most_common(1)[0][1]) / len(test)


def evaluation_ids(items: Sequence[Item]) -> str:
    """sha256 of the datasets and ids of the evaluation items, in any order."""
    return question_ids_sha256((item.dataset, item.id) for item in items)
