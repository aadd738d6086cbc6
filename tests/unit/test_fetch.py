"""Sources: whole or not there, mirrors first, one fetcher at a time, and no network where it is forbidden."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.file_server import Fault, FileServer, serving
from turncredit.cli import main as cli
from turncredit.data.download import RetryPolicy
from turncredit.data.fetch import fetch, fetched_file, is_fetched, read_record
from turncredit.data.questions import SPLITS
from turncredit.data.sources import QUESTIONS, Registry, load_registry
from turncredit.errors import ConfigError, DataError

ROOT = Path(__file__).parents[2]
HASTY = RetryPolicy(timeout_s=1.0, retries=1, pause_s=0.001, longest_pause_s=0.01)
TRAIN, TEST, BIG = b"one\ntwo\n", b"three\n", bytes(range(256)) * 400


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@dataclass
class Site:
    """A clone's configuration, and a server with two sources."""

    root: Path
    server: FileServer

    def write(self, **changes: Any) -> None:
        """config/sources.yaml with some keys of the source ``small`` changed."""
        small = {"title": "a small set", "format": "lucene", "licence": "none", "kind": "url",
                 "repository": f"{self.server.url}/small",
                 "files": {"train.bin": {"size": len(TRAIN), "sha256": sha(TRAIN)}, "test.bin": {}}}
        big = {"title": "cut in parts", "format": "faiss", "licence": "none", "kind": "url",
               "repository": f"{self.server.url}/big",
               "files": {"big.index": {"sha256": sha(BIG), "size": len(BIG), "parts": {
                   "aa": {"size": 60_000, "sha256": sha(BIG[:60_000])},
                   "ab": {"size": len(BIG) - 60_000, "sha256": sha(BIG[60_000:])}}}}}
        (self.root / "config").mkdir(exist_ok=True)
        (self.root / "config" / "sources.yaml").write_text(
            yaml.safe_dump({"sources": {"small": small | changes, "big": big}}, sort_keys=False))

    @property
    def registry(self) -> Registry:
        return load_registry(self.root)

    @property
    def downloads(self) -> Path:
        return self.root / "downloads"

    def fetch(self, *names: str, **options: Any) -> None:
        fetch(self.registry, names, policy=HASTY, **options)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("TURNCREDIT_MIRROR", "TURNCREDIT_DOWNLOADS", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        server.files |= {"/small/train.bin": TRAIN, "/small/test.bin": TEST, "/big/aa": BIG[:60_000],
                         "/big/ab": BIG[60_000:]}
        site = Site(tmp_path / "clone", server)
        site.root.mkdir()
        site.write()
        yield site


def test_a_source_is_there_with_a_record_of_what_is_known(site: Site) -> None:
    site.fetch("small", "big")
    assert (site.downloads / "big" / "big.index").read_bytes() == BIG
    record = read_record(site.downloads / "small")
    assert {name: entry["sha256"] for name, entry in record["files"].items()} == {
        "train.bin": sha(TRAIN), "test.bin": sha(TEST)}
    assert record["files"]["train.bin"]["known"] == "config/sources.yaml"
    assert "compared with nothing" in record["files"]["test.bin"]["known"]
    assert record["licence"] == "none"
    assert not list(site.downloads.glob(".*partial"))


def test_what_is_here_is_not_asked_for_again(site: Site) -> None:
    site.fetch("small")
    asked = len(site.server.seen)
    site.fetch("small")
    site.fetch("small", verify=True)
    assert len(site.server.seen) == asked


def test_a_source_of_which_one_file_fails_is_not_there_and_goes_on_with_that_file(site: Site) -> None:
    site.server.faults["/small/test.bin"] = [Fault(status=500)] * 9
    with pytest.raises(DataError, match=r"test\.bin"):
        site.fetch("small")
    assert not (site.downloads / "small").exists()
    assert not is_fetched(site.registry, "small")
    site.server.faults.clear()
    site.fetch("small")
    assert is_fetched(site.registry, "small")
    assert site.server.asked("/small/train.bin") == [""]


def test_an_altered_file_is_found(site: Site) -> None:
    site.fetch("small")
    path = site.downloads / "small" / "test.bin"
    assert fetched_file(site.registry, "small", "test.bin") == path
    path.write_bytes(b"THREE\n")
    assert is_fetched(site.registry, "small")  # of the right size: only reading it can tell
    with pytest.raises(DataError, match=r"test\.bin.*sha256"):
        site.fetch("small", verify=True)
    with pytest.raises(DataError, match=r"turncredit fetch small"):
        fetched_file(site.registry, "small", "test.bin")
    path.write_bytes(b"more than three\n")
    assert not is_fetched(site.registry, "small")


def test_files_put_here_by_hand_are_taken_if_they_are_right(site: Site) -> None:
    folder = site.downloads / "small"
    folder.mkdir(parents=True)
    (folder / "train.bin").write_bytes(TRAIN)
    site.fetch("small")
    assert site.server.asked("/small/train.bin") == []
    assert is_fetched(site.registry, "small")


def test_a_wrong_file_put_here_by_hand_is_refused_and_kept(site: Site) -> None:
    folder = site.downloads / "small"
    folder.mkdir(parents=True)
    (folder / "train.bin").write_bytes(TRAIN.upper())
    with pytest.raises(DataError, match=r"train\.bin: has the sha256") as caught:
        site.fetch("small")
    named = Path(caught.value.message.split(":")[0])
    assert named.read_bytes() == TRAIN.upper()


def test_a_changed_registry_is_fetched_again_and_compared(site: Site) -> None:
    site.fetch("small")
    site.write(files={"train.bin": {"sha256": sha(b"new")}})
    assert not is_fetched(site.registry, "small")
    with pytest.raises(DataError, match=f"not {sha(b'new')}"):
        site.fetch("small")


@pytest.mark.parametrize("form", ["path", "file", "http"])
def test_a_folder_of_downloads_is_a_mirror_as_it_is(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    site.fetch("small", "big")
    mirror = tmp_path / "a mirror"
    site.downloads.rename(mirror)
    site.server.seen.clear()
    site.server.publish(mirror, "mirror/")
    monkeypatch.setenv("TURNCREDIT_MIRROR", {"path": str(mirror), "file": mirror.as_uri(),
                                             "http": f"{site.server.url}/mirror"}[form])
    site.fetch("small", "big")
    assert (site.downloads / "big" / "big.index").read_bytes() == BIG
    assert all(path.startswith("/mirror/") for path, _ in site.server.seen)


def test_what_a_mirror_lacks_or_has_wrong_comes_from_the_publisher(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = tmp_path / "mirror"
    (mirror / "small").mkdir(parents=True)
    (mirror / "small" / "train.bin").write_bytes(b"ONE\nTWO\n")
    monkeypatch.setenv("TURNCREDIT_MIRROR", str(mirror))
    site.fetch("small")
    assert (site.downloads / "small" / "train.bin").read_bytes() == TRAIN
    assert (site.downloads / "small" / "test.bin").read_bytes() == TEST


def test_offline_a_source_comes_from_a_folder_or_not_at_all(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"small/train\.bin: not here, and HF_HUB_OFFLINE") as caught:
        site.fetch("small")
    assert "snakemake --cores 2 fetch --config scale=" in caught.value.remedy
    monkeypatch.setenv("TURNCREDIT_MIRROR", f"{site.server.url}/mirror")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE"):
        site.fetch("small")
    (tmp_path / "mirror" / "small").mkdir(parents=True)
    (tmp_path / "mirror" / "small" / "train.bin").write_bytes(TRAIN)
    (tmp_path / "mirror" / "small" / "test.bin").write_bytes(TEST)
    monkeypatch.setenv("TURNCREDIT_MIRROR", str(tmp_path / "mirror"))
    site.fetch("small")
    monkeypatch.delenv("TURNCREDIT_MIRROR")
    site.fetch("small")  # here: nothing to ask for
    assert site.server.seen == []


def test_a_shared_folder_of_downloads_is_used_where_it_is(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNCREDIT_DOWNLOADS", str(tmp_path / "shared"))
    site.fetch("small")
    assert fetched_file(site.registry, "small", "train.bin") == tmp_path / "shared" / "small" / "train.bin"
    assert not site.downloads.exists()


def test_two_fetchers_of_one_source_bring_it_once(site: Site) -> None:
    site.server.faults["/small/train.bin"] = [Fault(sleep=0.3)]
    errors: list[BaseException] = []

    def run() -> None:
        try:
            site.fetch("small")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path for path, _ in site.server.seen] == ["/small/train.bin", "/small/test.bin"]


def test_a_fetcher_that_was_killed_leaves_nothing_that_looks_finished(site: Site) -> None:
    site.server.faults["/big/ab"] = [Fault(cut=20_000), Fault(sleep=20)]
    code = ("import sys; from pathlib import Path; from turncredit.data.fetch import fetch;"
            "from turncredit.data.sources import load_registry; fetch(load_registry(Path(sys.argv[1])), ['big'])")
    process = subprocess.Popen([sys.executable, "-c", code, str(site.root)], stderr=subprocess.DEVNULL)
    while len(site.server.asked("/big/ab")) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (site.downloads / "big").exists()
    site.server.faults.clear()
    site.server.seen.clear()
    site.fetch("big")
    assert (site.downloads / "big" / "big.index").read_bytes() == BIG
    assert [(path, headers.get("Range")) for path, headers in site.server.seen] == [("/big/ab", "bytes=20000-")]


def test_a_disk_too_small_for_all_is_told_before_anything_is_asked(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write(files={"huge.bin": {"size": 64_559_075_373}})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**11, 10**10, 9 * 10**10 // 2))
    with pytest.raises(DataError, match=r"64\.6 GB to download and 45\.0 GB free"):
        site.fetch("small")
    assert site.server.seen == []


@pytest.mark.parametrize(("changes", "says"), [
    ({"licenze": "x"}, "did you mean 'licence'?"),
    ({"format": "flashrg"}, "did you mean 'flashrag'?"),
    ({"files": {"../x": {}}}, "not a name under the source's folder"),
    ({"files": {}}, "an address that is no hub repository lists nothing by itself"),
    ({"files": {"x": {"sha256": "12"}}}, "files.x.sha256"),
    ({"files": {"x": {"size": 3, "parts": {"a": {"size": 2, "sha256": "0" * 64}}}}}, "together 2 bytes, and size = 3"),
    ({"files": {"x": {"parts": {"a": {"siez": 2, "sha256": "0" * 64}}}}}, "did you mean 'size'?"),
    ({"format": "flashrag"}, "each file of questions has a split and rows")])
def test_a_faulty_registry_is_named(site: Site, changes: dict[str, Any], says: str) -> None:
    site.write(**changes)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        site.fetch("small")
    assert "sources.yaml" in caught.value.message


def test_the_command_fetches_lists_and_names_what_it_does_not_know(site: Site) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli.app, ["fetch", *arguments, "--root", str(site.root)])

    assert run("smal").exit_code == 2
    assert "did you mean 'small'?" in run("smal").stderr
    assert run("small").exit_code == 0
    listed = run().stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [["small", "here"], ["big", "0.00"]]
    assert "licence: none" in listed[0]


HUB = {"config.json": b"{}", "weights/model.safetensors": BIG}


@pytest.fixture
def hub(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The server answers like the hub for one repository."""
    commit = "c" * 40
    tree = [{"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest(),
             **({"lfs": {"oid": sha(body), "size": len(body), "pointerSize": 130}} if "/" in name else {})}
            for name, body in HUB.items()]
    site.server.files |= {f"/api/models/o/r/tree/{commit}?recursive=true&expand=false": json.dumps(tree).encode()}
    site.server.repository = {f"/o/r/resolve/{commit}/{name}": (body, sha(body) if "/" in name else
                                                                hashlib.sha1(body).hexdigest(), commit)
                              for name, body in HUB.items()}
    monkeypatch.setenv("HF_ENDPOINT", site.server.url)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    site.write(kind="model", repository="o/r", revision=commit, files={}, format="model")
    return site


def test_a_snapshot_is_kept_by_the_hubs_library_and_its_blobs_are_compared(hub: Site) -> None:
    hub.fetch("small")
    record = read_record(hub.downloads / "small")
    assert {name: Path(record["folder"], name).read_bytes() for name in record["files"]} == HUB
    assert record["files"]["weights/model.safetensors"]["known"] == "named by the hub"
    assert "compared with nothing" in record["files"]["config.json"]["known"]
    assert is_fetched(hub.registry, "small")
    Path(record["folder"], "config.json").unlink()
    assert not is_fetched(hub.registry, "small")


def test_a_snapshot_with_other_bytes_than_the_hub_names_is_refused(hub: Site) -> None:
    path, (body, oid, commit) = list(hub.server.repository.items())[1]
    hub.server.repository[path] = (body[::-1], oid, commit)
    with pytest.raises(DataError, match="has the sha256"):
        hub.fetch("small")
    assert not is_fetched(hub.registry, "small")


def test_a_snapshot_that_is_not_there_or_forbidden_is_one_error(hub: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.server.repository.clear()
    hub.server.files = {}
    with pytest.raises(DataError, match="o/r: cannot be fetched"):
        hub.fetch("small")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE"):
        hub.fetch("small")


# The registry that is shipped.

SHIPPED = load_registry(ROOT)


def test_the_shipped_registry_has_the_counts_of_the_published_sets() -> None:
    def rows(dataset: str) -> list[int]:
        return [sum(entry.rows[dataset] for *_, entry in SHIPPED.files_of(dataset, split)) for split in SPLITS]

    assert {name: rows(name) for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique",
                                          "bamboogle")} == {
        "nq": [79168, 8757, 3610], "triviaqa": [78785, 8837, 11313], "popqa": [0, 0, 14267],
        "hotpotqa": [90447, 0, 7405], "2wikimultihopqa": [15000, 0, 12576], "musique": [19938, 0, 2417],
        "bamboogle": [0, 0, 125]}
    merged = SHIPPED.sources["search-r1"].files
    assert sum(merged["train.parquet"].rows.values()) == 169_615
    assert sum(merged["test.parquet"].rows.values()) == 51_713
    tested = {name: rows(name)[2] for name in merged["test.parquet"].rows}
    assert merged["test.parquet"].rows == tested


def test_the_shipped_registry_names_licences_revisions_and_sizes_that_fit() -> None:
    for name, source in SHIPPED.sources.items():
        assert source.licence, name
        for file in source.files.values():
            assert file.sha256 or file.md5 or source.format in QUESTIONS, name
    flat = SHIPPED.sources["wiki-18-e5-flat"].files["e5_Flat.index"]
    assert sum(part.size for part in flat.parts.values()) == flat.size == 21_015_324 * 768 * 4 + 45
    assert SHIPPED.sources["nq"].url("dev.jsonl") == (
        "https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets/resolve/"
        "25fc653fd19ac639aa1ed40c0228cda477788510/nq/dev.jsonl")


def test_a_set_can_be_taken_from_the_merged_files_instead() -> None:
    merged = SHIPPED.model_copy(update={"instead": {"nq": "search-r1"}})
    assert [(source, file) for source, file, _ in merged.files_of("nq", "train")] == [("search-r1", "train.parquet")]
    with pytest.raises(ConfigError, match="did you mean 'hotpotqa'"):
        SHIPPED.source_of("hotpotqaa")
