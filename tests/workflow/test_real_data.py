"""A scale with real questions: downloaded with a network, prepared without one, and not made again."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.conftest import Clone

PASSAGES = [json.dumps({"id": str(n), "contents": f'"T{n}"\ntext {n}'}) + "\n" for n in range(4)]
SETS = {"nq": {"train": 6, "validation": 3, "test": 2}, "popqa": {"test": 3}}


def published(folder: Path) -> dict[str, Any]:
    """Write small sources into a folder; their registry."""
    sources: dict[str, Any] = {}
    for name, splits in SETS.items():
        files = {}
        for split, count in splits.items():
            rows = [json.dumps({"question": f"{name} {split} {n}", "golden_answers": ["yes"]}) for n in range(count)]
            (folder / name).mkdir(exist_ok=True, parents=True)
            (folder / name / f"{split}.jsonl").write_text("".join(f"{row}\n" for row in rows))
            files[f"{split}.jsonl"] = {"split": split, "rows": {name: count}}
        sources[name] = {"title": name, "format": "flashrag", "licence": "none", "repository": "o/r", "files": files}
    (folder / "wiki").mkdir()
    packed = gzip.compress("".join(PASSAGES).encode())
    (folder / "wiki" / "wiki.gz").write_bytes(packed)
    sources["wiki"] = {"title": "wiki", "format": "wiki18", "licence": "none", "repository": "o/r", "files": {
        "wiki.gz": {"sha256": hashlib.sha256(packed).hexdigest(), "inside": {"rows": len(PASSAGES)}}}}
    return {"sources": sources, "mirror": str(folder)}


@pytest.fixture
def real(clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A clone with such a scale, without a network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = clone.root / "config"
    (config / "sources.yaml").write_text(yaml.safe_dump(published(tmp_path / "mirror")))
    (config / "real.yaml").write_text(yaml.safe_dump({
        "questions": {"in_domain": ["nq"], "out_of_domain": ["popqa"], "validation_questions": 2},
        "retriever": {"corpus": "wiki"}, "policy": {"path_or_id": "o/policy"},
        "experiments": {"search": {"task": {"name": "search"}, "train_on": ["nq"],
                                   "arms": {"MT-PPO": {"algorithm": "MT-PPO"}}}}}))
    return clone


def test_data_are_downloaded_once_and_prepared_once(real: Clone) -> None:
    real.snakemake("fetch", "--config", "scale=real")
    assert not (real.root / "data").exists()
    real.snakemake("data", "--config", "scale=real")
    assert (real.root / "data/real/corpus.jsonl").read_text() == "".join(PASSAGES)
    files = (real.root / "data/real/questions").glob("*.jsonl")
    lines = {path.name: len(path.read_text().splitlines()) for path in files}
    assert lines == {"nq.train.jsonl": 6, "nq.validation.jsonl": 2, "nq.test.jsonl": 2, "popqa.test.jsonl": 3}

    registry = real.root / "config" / "sources.yaml"
    registry.write_text(registry.read_text().replace("title: wiki", "title: another title"))
    assert real.jobs("data", "--config", "scale=real") == {}


def test_a_failed_download_is_reported_by_its_job(real: Clone, tmp_path: Path) -> None:
    (tmp_path / "mirror" / "nq" / "test.jsonl").unlink()
    done = real.snakemake("fetch", "--config", "scale=real", check=False)
    assert done.returncode != 0
    assert "test.jsonl: cannot be fetched" in done.stdout
    assert "mirror/nq/test.jsonl: No such file or directory" in done.stdout
    assert not (real.root / "downloads" / "nq").exists()
    assert (real.root / "downloads" / "wiki" / "fetched.json").exists()


def test_generated_data_need_no_download(clone: Clone) -> None:
    assert "fetch_source" not in clone.jobs("data", "fetch", "--config", "scale=smoke")
