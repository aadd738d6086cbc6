"""The mini world: splits never leak, plans can be copied, and equal settings give equal bytes."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from turncredit.config.data import WorldConfig
from turncredit.data.corpus import read_corpus
from turncredit.data.questions import SPLITS, chance_level, read_questions, write_questions
from turncredit.errors import ConfigError, DataError
from turncredit.files import sha256
from turncredit.miniature.build import build_world
from turncredit.miniature.facts import ATTRIBUTES, load_facts
from turncredit.miniature.passages import corpus_cities
from turncredit.miniature.questions import DATASETS, known_countries, known_facts, make_questions, split_countries
from turncredit.types import Hop, Question

CONFIG = WorldConfig(cities=600, train_questions=400, validation_questions=40, test_questions=80,
                     in_domain=("facts", "bridge"), out_of_domain=("inverse", "compose", "chain", "long_chain"))
HOPS = {"facts": 1, "bridge": 2, "inverse": 1, "compose": 2, "chain": 3, "long_chain": 4}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    build_world(CONFIG, folder)
    return folder


@pytest.fixture(scope="module")
def questions(world):
    return {(name, split): read_questions(world / "questions" / f"{name}.{split}.jsonl")
            for name in DATASETS for split in SPLITS}


def test_no_question_and_no_fact_is_in_two_splits(questions):
    for part in (lambda q: {q.question}, lambda q: set(q.plan), lambda q: {(q.question, *q.answers)}):
        of_split = {split: set().union(*(part(q) for (_, s), all_ in questions.items() if s == split for q in all_))
                    for split in SPLITS}
        assert not of_split["train"] & of_split["test"]
        assert not of_split["train"] & of_split["validation"]
        assert not of_split["validation"] & of_split["test"]


def test_every_split_of_every_dataset_has_questions_up_to_its_size(questions):
    sizes = {"train": CONFIG.train_questions, "validation": CONFIG.validation_questions,
             "test": CONFIG.test_questions}
    for (name, split), found in questions.items():
        assert 0 < len(found) <= sizes[split], (name, split)
        assert len({q.question for q in found}) == len(found)
    assert len(questions["facts", "train"]) == 400
    assert all(len(questions[name, "test"]) == 80 for name in DATASETS)


def test_a_plan_answers_its_question_by_copying(questions):
    for (name, _), found in questions.items():
        for question in found:
            assert question.hops == len(question.plan) == HOPS[name]
            assert question.answers == (question.plan[-1].evidence,)
            known = question.question.rstrip("?").split()
            for hop in question.plan:
                assert set(hop.query.split()) <= set(known), "words of the question or of evidence found before"
                known += hop.evidence.split()


def test_a_long_chain_visits_three_countries(questions):
    for split in SPLITS:
        for question in questions["long_chain", split]:
            assert len({hop.evidence for hop in question.plan[:-1]}) == 3


def test_known_facts_are_those_of_an_equal_share_of_each_splits_countries():
    facts = load_facts()
    split, known = split_countries(facts, 0), known_countries(facts, 0.4, 0)
    for part in SPLITS:
        assert sum(split[name] == part for name in known) == round(0.4 * sum(s == part for s in split.values()))
    asked = known_facts(facts, 0.4, 0)
    assert {question.plan[0].query.partition(" of ")[2] for question in asked} == {
        name for name in known if any(facts.askable(name, relation) for relation in ATTRIBUTES)}
    assert known_countries(facts, 0.2, 0) < known
    assert known_facts(facts, 0.0, 0) == []


def test_each_hop_stands_in_a_passage(world, questions):
    texts = [p.document().text for p in read_corpus(world / "corpus.jsonl")]
    sentences = set(texts)
    for question in questions["facts", "test"]:
        relation, country = question.plan[0].query.split(" of ")
        assert f"The {relation} of {country} is {question.answers[0]}." in sentences


def test_answers_cannot_be_read_off_the_question_or_guessed(world, questions):
    for found in questions.values():
        for question in found:
            assert question.answers[0].lower() not in question.question.lower()
            assert len(question.answers[0]) >= 4
    chance = json.loads((world / "world.json").read_text())["chance"]
    assert chance.keys() == DATASETS.keys()
    assert all(0 < level < 0.1 for level in chance.values()), chance


def test_world_json_vouches_for_every_file(world):
    told = json.loads((world / "world.json").read_text())
    files = {str(p.relative_to(world)) for p in world.rglob("*.jsonl")}
    assert told["sha256"] == {name: sha256(world / name) for name in files}
    assert told["passages"] == sum(1 for _ in read_corpus(world / "corpus.jsonl"))


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_same_settings_give_the_same_bytes_in_any_process(world, tmp_path, hash_seed):
    code = ("import sys; from pathlib import Path; from turncredit.config.data import WorldConfig; "
            "from turncredit.miniature.build import build_world; "
            "build_world(WorldConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))")
    subprocess.run([sys.executable, "-c", code, CONFIG.model_dump_json(), str(tmp_path)], check=True,
                   env={**os.environ, "PYTHONHASHSEED": hash_seed})
    assert (tmp_path / "world.json").read_bytes() == (world / "world.json").read_bytes()


def test_another_seed_deals_the_countries_anew():
    facts = load_facts()
    first, second = split_countries(facts, 0), split_countries(facts, 1)
    assert first.keys() == second.keys() == facts.countries.keys()
    assert first != second


def test_sizes_only_cut_and_never_add(world):
    facts = load_facts()
    cities = corpus_cities(facts, CONFIG.cities)
    everything = make_questions(facts, cities, "inverse", 0, dict.fromkeys(SPLITS, 10**9))
    few = make_questions(facts, cities, "inverse", 0, dict.fromkeys(SPLITS, 7))
    for split in SPLITS:
        assert {q.question for q in few[split]} <= {q.question for q in everything[split]}
        assert len(few[split]) == 7


def test_an_unknown_dataset_is_named_with_its_nearest(tmp_path):
    with pytest.raises(ConfigError, match="bridge"):
        build_world(CONFIG.model_copy(update={"in_domain": ("brigde",)}), tmp_path)


def test_chance_is_that_of_the_best_constant_answer():
    def asked(*answers):
        return [Question(str(n), "facts", "?", (a,), 1, (Hop("q", a),)) for n, a in enumerate(answers)]

    assert chance_level(asked("x", "x", "y"), asked("x", "x", "y", "z")) == 0.5
    assert chance_level(asked("y"), asked("x", "x", "y", "z")) == 0.5
    assert chance_level([], asked("x", "y")) == 0.5
    assert chance_level(asked("x"), []) == 0.0


QUESTION = Question("facts-test-0", "facts", "What is the capital of Kenya?", ("Nairobi",), 1,
                    (Hop("capital of Kenya", "Nairobi"),))


def test_questions_read_back_as_written(tmp_path):
    path = tmp_path / "q.jsonl"
    both = [QUESTION, replace(QUESTION, id="facts-test-1", plan=(), answers=("Nairobi", "Nairobbery"))]
    write_questions(both, path)
    assert read_questions(path) == both


@pytest.mark.parametrize("change", [
    {"id": 3}, {"id": " "}, {"answers": []}, {"answers": [""]}, {"answers": "Nairobi"}, {"hops": 0}, {"hops": True},
    {"hops": "1"}, {"plan": None}, {"plan": [{"query": "x"}]}, {"plan": ["x"]}, {"question": None}, {"anwers": ["x"]},
])
def test_a_malformed_question_is_named_by_file_and_line(tmp_path, change):
    path = tmp_path / "q.jsonl"
    write_questions([QUESTION], path)
    record = json.loads(path.read_text())
    path.write_text(path.read_text() + json.dumps({**record, "id": "other", **change}) + "\n")
    with pytest.raises(DataError, match=r"q\.jsonl:2: "):
        read_questions(path)


@pytest.mark.parametrize("text", ["{", "[]", "\n", '{"id": "x"}\n'])
def test_a_line_that_is_no_question_is_refused(tmp_path, text):
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=r"q\.jsonl:1: "):
        read_questions(path)


def test_an_id_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "q.jsonl"
    write_questions([QUESTION, QUESTION], path)
    with pytest.raises(DataError, match=r"q\.jsonl:2: .* line 1"):
        read_questions(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="absent"):
        read_questions(tmp_path / "absent.jsonl")
