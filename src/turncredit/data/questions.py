"""Question files: one JSON object a line, read and checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turncredit.errors import DataError
from turncredit.files import question_ids_sha256
from turncredit.types import Hop, Question


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
    return question_ids_sha256((question.dataset, question.id) for question in questions)
