"""Corpus lines: what is read back, and how a bad line is named."""

import json

import pytest

from turncredit.data.corpus import Passage, read_corpus
from turncredit.errors import DataError

GOOD = json.dumps({"id": "1", "contents": '"Kenya"\nThe capital of Kenya is Nairobi.'})


def test_a_passage_reads_back_as_its_title_and_text(tmp_path):
    passage = Passage.of("1", "Kenya", "The capital of Kenya is Nairobi.")
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"id": passage.id, "contents": passage.contents, "more": 1}) + "\n")
    assert list(read_corpus(path)) == [passage]
    document = passage.document(1.5)
    assert (document.title, document.text) == ("Kenya", "The capital of Kenya is Nairobi.")
    assert document.score == 1.5


def test_contents_of_one_line_are_text_without_a_title():
    assert Passage("1", "no title here").document().text == "no title here"
    assert Passage("1", "no title here").document().title == ""


def test_only_the_first_line_is_the_title():
    assert Passage("1", '"A"\nb\nc').document().text == "b\nc"


@pytest.mark.parametrize("line", [
    "", "not json", "[]", "3", "{}", '{"id": "2"}', '{"id": 2, "contents": "x"}',
    '{"id": "2", "contents": "  "}', '{"id": "", "contents": "x"}', '{"id": "1", "contents": "twice"}',
])
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: "):
        list(read_corpus(path))


def test_an_empty_a_missing_and_a_binary_file_are_refused(tmp_path):
    path = tmp_path / "corpus.jsonl"
    with pytest.raises(DataError, match=r"corpus\.jsonl"):
        list(read_corpus(path))
    path.write_text("")
    with pytest.raises(DataError, match="no passage"):
        list(read_corpus(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        list(read_corpus(path))
