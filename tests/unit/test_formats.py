"""Published files become the files of a scale: every row once, in order, in one split, or an error that names it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from tests.file_server import Fault, serving
from turncredit.cli import main as cli
from turncredit.config.data import QuestionsConfig
from turncredit.config.load import load_scale
from turncredit.data.corpus import read_corpus
from turncredit.data.formats import extract_corpus, read_rows
from turncredit.data.prepare import choose, prepare
from turncredit.data.questions import Split, read_split
from turncredit.data.sources import Format, Inside, load_registry
from turncredit.errors import ConfigError, DataError
from turncredit.text_matching import normalise
from turncredit.types import Question

ROOT = Path(__file__).parents[2]


def flashrag(dataset: str, names: Sequence[str]) -> bytes:
    rows = ({"id": f"{dataset}_{n}", "question": name, "golden_answers": [f"{name} yes", ""], "metadata": {"x": [1]}}
            for n, name in enumerate(names))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    pq.write_table(pa.Table.from_pylist(rows), buffer := io.BytesIO())
    return buffer.getvalue()


def search_r1(of: dict[str, Sequence[str]]) -> bytes:
    return parquet([{"id": f"train_{n}", "question": name, "golden_answers": [f"{name} yes"], "data_source": dataset,
                     "reward_model": {"style": "rule", "ground_truth": {"target": [name]}}}
                    for dataset, names in of.items() for n, name in enumerate(names)])


def trivia_rc(names: Sequence[str]) -> bytes:
    return parquet([{"question_id": f"tc_{n}", "question": name,
                     "answer": {"value": "V", "aliases": ["A"], "normalized_aliases": [f"{name} yes"]}}
                    for n, name in enumerate(names)])


def put(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


@pytest.mark.parametrize(("form", "make"), [
    ("flashrag", lambda names: flashrag("nq", names)), ("search_r1", lambda names: search_r1({"nq": names})),
    ("trivia_rc", trivia_rc)])
def test_every_form_gives_the_same_rows_in_order(tmp_path: Path, form: Format, make: Callable[..., bytes]) -> None:
    names = [f"who is {n}" for n in range(9000)]  # more than a batch of a parquet
    rows = list(read_rows(put(tmp_path / "file", make(names)), form, {"nq": 9000}))
    assert [(row.number, row.dataset, row.question, row.answers) for row in rows] == [
        (n + 1, "nq", name, (f"{name} yes",)) for n, name in enumerate(names)]


@pytest.mark.parametrize("row", [
    "", "{", "[]", "3", "{}", '{"question": "q"}', '{"golden_answers": ["a"]}',
    '{"question": " ", "golden_answers": ["a"]}', '{"question": 3, "golden_answers": ["a"]}',
    '{"question": "q", "golden_answers": []}',
    '{"question": "q", "golden_answers": ["", " "]}', '{"question": "q", "golden_answers": [null]}',
    '{"question": "q", "golden_answers": [true]}', '{"question": "q", "golden_answers": {"a": 1}}'])
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: str) -> None:
    good = '{"question": "q", "golden_answers": ["a"]}'
    path = put(tmp_path / "dev.jsonl", f"{good}\n{row}\n{good}\n".encode())
    with pytest.raises(DataError, match=r"dev\.jsonl:2: "):
        list(read_rows(path, "flashrag", {"nq": 3}))


@pytest.mark.parametrize(("value", "answers"), [
    (["a", "b", "a"], ("a", "b")), ("a", ("a",)), ([1990, "", " x "], ("1990", "x"))])
def test_answers_are_texts_each_once_and_none_is_blank(tmp_path: Path, value: Any, answers: tuple[str, ...]) -> None:
    path = put(tmp_path / "file", json.dumps({"question": "q", "golden_answers": value}).encode())
    assert next(read_rows(path, "flashrag", {"nq": 1})).answers == answers


def test_a_bad_row_of_a_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    path = put(tmp_path / "train.parquet", search_r1({"nq": ["a"], "other": ["b"]}))
    with pytest.raises(DataError, match=r"train\.parquet:2: .*'other'"):
        list(read_rows(path, "search_r1", {"nq": 1, "hotpotqa": 1}))


@pytest.mark.parametrize(("body", "form", "says"), [
    (flashrag("nq", "ab"), "flashrag", "2 rows of nq, not 3 rows of nq"), (b"", "flashrag", "0 rows of nq"),
    (b"\xff\n", "flashrag", "not UTF-8"), (b"PAR1 no", "trivia_rc", "cannot be read as parquet"),
    (parquet([{"question": "q"}]), "trivia_rc", "no column 'answer'"),
    (trivia_rc("abc")[:-40], "trivia_rc", "cannot be read as parquet")])
def test_a_wrong_file_is_named(tmp_path: Path, body: bytes, form: Format, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        list(read_rows(put(tmp_path / "file", body), form, {"nq": 3}))
    assert str(tmp_path / "file") in caught.value.message
    assert caught.value.remedy


# Passages.

def passages(count: int, text: str = "x" * 100) -> list[bytes]:
    return [json.dumps({"id": str(n), "contents": f'"Title {n}"\n{text} \u2028 {n}'}).encode() + b"\n"
            for n in range(count)]


def archive(path: Path, files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w:gz", format=form) as tar:
        folder = tarfile.TarInfo("data00")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, body in files.items():
            member = tarfile.TarInfo(f"data00/someone/{name}")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return path


def inside(lines: list[bytes]) -> Inside:
    body = b"".join(lines)
    return Inside(rows=len(lines), size=len(body), sha256=hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT, None])
def test_passages_come_out_of_the_archive_byte_for_byte(tmp_path: Path, form: int | None) -> None:
    lines = passages(3000)
    packed = tmp_path / "wiki.jsonl.gz"
    if form is None:
        packed.write_bytes(gzip.compress(b"".join(lines)))
    else:
        archive(packed, {"wiki_dump.jsonl": b"".join(lines)}, form)
    extract_corpus(packed, inside(lines), tmp_path / "corpus.jsonl")
    assert (tmp_path / "corpus.jsonl").read_bytes() == b"".join(lines)
    assert [passage.id for passage in read_corpus(tmp_path / "corpus.jsonl")] == [str(n) for n in range(3000)]


LINES = passages(5)


@pytest.mark.parametrize(("lines", "says"), [
    (LINES[:4], "passages 4, not 5"), ([*LINES, LINES[0]], r"wiki\.gz:6: .*its id is '0', not '5'"),
    ([LINES[0], LINES[2], LINES[1], *LINES[3:]], r"wiki\.gz:2: .*its id is '2', not '1'"),
    ([*LINES[:2], b"{\n", *LINES[3:]], r"wiki\.gz:3: "), ([*LINES[:2], b'{"id": "2"}\n', *LINES[3:]], r"wiki\.gz:3: "),
    ([*LINES[:2], b'{"id": "2", "contents": "\xff"}\n', *LINES[3:]], r"wiki\.gz:3: "),
    ([*LINES[:4], LINES[4].replace(b"xxx", b"xyx")], "the sha256"), ([], "passages 0, not 5")])
def test_wrong_passages_leave_no_corpus(tmp_path: Path, lines: list[bytes], says: str) -> None:
    packed = archive(tmp_path / "wiki.gz", {"dump": b"".join(lines)})
    with pytest.raises(DataError, match=says):
        extract_corpus(packed, inside(LINES), tmp_path / "out" / "corpus.jsonl")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("damage", "says"), [
    (lambda body: body[:len(body) // 2], "breaks off after passage"), (lambda _: b"plain text", "as a gzip"),
    (lambda body: body[:-300] + bytes(300), "breaks off|as a gzip|the sha256|not the passage")])
def test_a_damaged_archive_leaves_no_corpus(tmp_path: Path, damage: Callable[[bytes], bytes], says: str) -> None:
    lines = passages(20_000, "text")
    packed = archive(tmp_path / "wiki.gz", {"dump": b"".join(lines)})
    put(packed, damage(packed.read_bytes()))
    with pytest.raises(DataError, match=says):
        extract_corpus(packed, inside(lines), tmp_path / "out" / "corpus.jsonl")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_archive_of_no_file_or_two_is_refused(tmp_path: Path) -> None:
    for files, says in (({}, "no file"), ({"a": b"".join(LINES), "b": b"".join(LINES)}, "more than one file")):
        with pytest.raises(DataError, match=says):
            extract_corpus(archive(tmp_path / "wiki.gz", files), inside(LINES), tmp_path / "out" / "corpus.jsonl")


# Splits.

def questions(dataset: str, texts: Sequence[str]) -> list[Question]:
    return [Question(f"{dataset}-{n}", dataset, text, ("yes",), 1, ()) for n, text in enumerate(texts)]


def sets(**of: dict[Split, Sequence[str]]) -> dict[str, dict[Split, list[Question]]]:
    return {name: {split: questions(name, texts) for split, texts in splits.items()} for name, splits in of.items()}


def texts(of_split: dict[Split, list[Question]], split: Split) -> list[str]:
    return [question.question for question in of_split[split]]


SETTINGS = QuestionsConfig(in_domain=("a",), out_of_domain=("b",), validation_questions=2)


def test_what_stands_in_a_test_is_trained_on_by_no_set() -> None:
    chosen, dropped = choose(sets(
        a={"train": ["one", "The two?", "three", "four", "five"], "validation": ["Six", "three!"], "test": ["nine"]},
        b={"test": ["two", "six"]}), SETTINGS)
    assert texts(chosen["a"], "test") == ["nine"]
    assert texts(chosen["b"], "test") == ["two", "six"]
    assert texts(chosen["a"], "validation") == ["three!"]
    assert texts(chosen["a"], "train") == ["one", "four", "five"]
    assert dropped == {"a": {"validation": 1, "train": 2}}


def test_a_set_without_validation_gives_some_of_its_training_questions_and_their_copies() -> None:
    names = [f"question {n // 2}" for n in range(40)]  # each stands twice
    chosen, dropped = choose(sets(a={"train": names, "validation": [], "test": ["x"]}),
                             SETTINGS.model_copy(update={"out_of_domain": (), "validation_questions": 7}))
    held, left = texts(chosen["a"], "validation"), texts(chosen["a"], "train")
    assert len(held) == 7
    assert not set(held) & set(left)
    assert sorted(set(held) | set(left)) == sorted(set(names))
    assert dropped == {"a": {"train": 1}}  # the copy of the one that was held out alone


def test_a_limit_chooses_by_text_and_seed_and_keeps_the_order() -> None:
    names = [f"question {n}" for n in range(200)]

    def chosen(seed: int, order: Sequence[str]) -> list[str]:
        settings = SETTINGS.model_copy(update={"seed": seed, "test_questions": 20})
        return texts(choose(sets(b={"test": order}), settings)[0]["b"], "test")

    first = chosen(0, names)
    assert len(first) == 20
    assert first == [name for name in names if name in first] != names[:20]
    assert sorted(chosen(0, names[::-1])) == sorted(first)
    assert chosen(1, names) != first


def test_no_training_question_left_is_an_error() -> None:
    with pytest.raises(DataError, match="a: no train question is left"):
        choose(sets(a={"train": ["x"], "validation": ["y"], "test": ["X"]}), SETTINGS)


# From a server to a run's questions.

TRAIN = [f"question {n}" for n in range(30)]
SETS: dict[str, dict[str, list[str]]] = {
    "nq": {"train.jsonl": [*TRAIN, "shared"], "dev.jsonl": ["dev 1", "dev 2"],
           "test.jsonl": ["what is \u2028 it", "b"]},
    "hotpotqa": {"train.jsonl": [f"hop {n}" for n in range(20)], "dev.jsonl": ["Shared?", "hop test"]},
    "popqa": {"test.jsonl": ["pop 1", "pop 2", "pop 3"]}}
SPLIT = {"nq": {"train.jsonl": "train", "dev.jsonl": "validation", "test.jsonl": "test"},
         "hotpotqa": {"train.jsonl": "train", "dev.jsonl": "test"}, "popqa": {"test.jsonl": "test"}}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a scale of real questions, whose sources a local server has."""
    for name in ("TURNCREDIT_MIRROR", "TURNCREDIT_DOWNLOADS", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    config = tmp_path / "config"
    config.mkdir()
    (config / "algorithms.yaml").write_text((ROOT / "config" / "algorithms.yaml").read_text())
    arms = {"MT-PPO": {"algorithm": "MT-PPO"}}
    (config / "real.yaml").write_text(yaml.safe_dump({
        "questions": {"in_domain": ["nq", "hotpotqa"], "out_of_domain": ["popqa"], "validation_questions": 2},
        "retriever": {"corpus": "wiki"}, "policy": {"path_or_id": "o/r"},
        "experiments": {"search": {"task": {"name": "search"}, "train_on": ["nq", "hotpotqa"], "arms": arms}}}))
    with serving() as server:
        bodies = {f"/{name}/{file}": flashrag(name, rows)
                  for name, files in SETS.items() for file, rows in files.items()}
        wiki = archive(tmp_path / "wiki.gz", {"dump": b"".join(LINES)}).read_bytes()
        server.files |= bodies | {"/wiki/wiki.gz": wiki}
        server.faults = {path: [Fault(cut=50)] for path in server.files}
        common = {"title": "t", "licence": "l", "kind": "url"}
        sources: dict[str, Any] = {
            name: {**common, "format": "flashrag", "repository": f"{server.url}/{name}",
                   "files": {file: {"split": SPLIT[name][file], "rows": {name: len(rows)}}
                             for file, rows in files.items()}}
            for name, files in SETS.items()}
        sources["wiki"] = {**common, "format": "wiki18", "repository": f"{server.url}/wiki", "files": {
            "wiki.gz": {"sha256": hashlib.sha256(wiki).hexdigest(), "inside": inside(LINES).model_dump()}}}
        (config / "sources.yaml").write_text(yaml.safe_dump({"sources": sources}))
        result = CliRunner().invoke(cli.app, ["fetch", "--scale", "real", "--root", str(tmp_path)])
        assert result.exit_code == 0, result.output
    return tmp_path


def run_prepare(root: Path) -> None:
    result = CliRunner().invoke(cli.app, ["prepare-data", "--scale", "real", "--root", str(root)])
    assert result.exit_code == 0, result.output


def test_what_a_server_has_becomes_what_a_run_reads(clone: Path) -> None:
    run_prepare(clone)
    data = clone / "data" / "real"
    assert (data / "corpus.jsonl").read_bytes() == b"".join(LINES)
    test = read_split(data, "test", None)
    assert {q.dataset: [p.question for p in test if p.dataset == q.dataset] for q in test} == {
        "nq": SETS["nq"]["test.jsonl"], "hotpotqa": SETS["hotpotqa"]["dev.jsonl"], "popqa": SETS["popqa"]["test.jsonl"]}
    assert test[0].answers == (f"{test[0].question} yes",)
    assert [q.id for q in read_split(data, "train", ["nq"])] == [f"nq-train-{n}" for n in range(30)]
    assert [q.question for q in read_split(data, "validation", ["nq"])] == ["dev 1", "dev 2"]
    assert len(read_split(data, "validation", ["hotpotqa"])) == 2
    seen: dict[str, str] = {}
    for split in ("train", "validation", "test"):
        for question in read_split(data, split, None):
            assert seen.setdefault(normalise(question.question), split) == split
    world = json.loads((data / "world.json").read_text())
    assert world["dropped"]["nq"] == {"validation": 0, "train": 1}
    assert world["passages"] == 5


def test_the_same_sources_give_the_same_bytes_from_whatever_mirror(
        clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_prepare(clone)
    first = {path: path.read_bytes() for path in (clone / "data").rglob("*") if path.is_file()}
    for path in first:
        path.unlink()
    mirror = (clone / "downloads").rename(clone / "mirror")
    monkeypatch.setenv("TURNCREDIT_MIRROR", str(mirror))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert CliRunner().invoke(cli.app, ["fetch", "--scale", "real", "--root", str(clone)]).exit_code == 0
    run_prepare(clone)
    assert {path: path.read_bytes() for path in first} == first


def test_data_that_were_not_fetched_or_were_altered_are_refused(clone: Path) -> None:
    registry, scale = load_registry(clone), load_scale("real", clone / "config")
    (clone / "downloads" / "nq" / "test.jsonl").write_bytes(flashrag("nq", ["a", "b"]))
    with pytest.raises(DataError, match=r"nq/test\.jsonl: differs"):
        prepare(scale, registry, clone / "data" / "real")
    (clone / "downloads" / "nq").rename(clone / "elsewhere")
    with pytest.raises(DataError, match="turncredit fetch nq"):
        prepare(scale, registry, clone / "data" / "real")
    assert not (clone / "data" / "real" / "world.json").exists()


def test_a_scale_of_a_made_world_has_nothing_to_fetch_or_prepare() -> None:
    registry, mini = load_registry(ROOT), load_scale("mini", ROOT / "config")
    assert registry.needed(mini) == []
    with pytest.raises(ConfigError, match="questions is missing"):
        prepare(mini, registry, Path("nowhere"))
