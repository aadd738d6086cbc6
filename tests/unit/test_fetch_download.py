"""One file over a bad network: whole and right under its name, or not there and one error that says why."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.file_server import Fault, FileServer, etag, serving
from turncredit.data import download as module
from turncredit.data.download import FileRequest, Piece, RetryPolicy, check_disk_space, download
from turncredit.errors import DataError

BODY = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)
HASTY = RetryPolicy(timeout_s=0.3, retries=3, pause_s=0.001, longest_pause_s=0.01)


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Net(NamedTuple):
    server: FileServer
    http: httpx.Client
    path: Path

    def get(self, *, size: int | None = None, sha256: str | None = None, md5: str | None = None,
            policy: RetryPolicy = HASTY) -> module.FileRecord:
        way = (Piece(f"{self.server.url}/file", size, sha256),)
        return download(FileRequest(self.path, (way,), size, sha256, md5), self.http, policy)

    def fails(self, says: str, **known: Any) -> None:
        """The download ends with an error that says so, names file and address, and leaves nothing under the name."""
        with pytest.raises(DataError) as caught:
            self.get(**known)
        assert says in str(caught.value)
        assert str(self.path) in str(caught.value)
        assert f"{self.server.url}/file" in str(caught.value)
        assert caught.value.remedy
        assert not self.path.exists()

    def is_whole(self, body: bytes = BODY) -> None:
        """The file is right, and nothing else is left beside it."""
        assert self.path.read_bytes() == body
        assert list(self.path.parent.iterdir()) == [self.path]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(follow_redirects=True, trust_env=False, verify=False) as client:  # no certificates to load
        yield client


@pytest.fixture
def net(tmp_path: Path, http: httpx.Client) -> Iterator[Net]:
    with serving() as server:
        server.files["/file"] = BODY
        yield Net(server, http, tmp_path / "folder" / "file.bin")


def test_a_file_arrives_and_its_record_says_what_it_is(net: Net) -> None:
    fetched = net.get()
    net.is_whole()
    assert (fetched.size, fetched.sha256) == (len(BODY), sha(BODY))
    assert "compared with nothing" in fetched.known
    assert net.server.asked("/file") == [""]


FAULTS = {
    "cut off at the start": [Fault(cut=0)],
    "cut off twice": [Fault(cut=100_000), Fault(cut=70_000)],
    "busy, then cut off": [Fault(status=503), Fault(status=500), Fault(cut=10), Fault(status=429)],
    "slow": [Fault(sleep=0.4)],
    "cut off, then slow": [Fault(cut=200_000), Fault(sleep=0.4)],
    "no length, cut off": [Fault(cut=200_000, no_length=True)],
    "ignores Range": [Fault(cut=200_000), Fault(no_range=True)],
    "ignores Range, cut off again": [Fault(cut=200_000), Fault(no_range=True, cut=100_000), Fault(no_range=True)],
    "retry later": [Fault(status=429, headers={"Retry-After": "1"})],
}


@pytest.mark.parametrize(("etags", "known"), [
    (True, {}), (False, {}), (False, {"sha256": sha(BODY)}), (True, {"size": len(BODY), "sha256": sha(BODY)})],
    ids=["etag", "nothing", "hash", "etag, hash, size"])
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_passing_fault_is_overcome(net: Net, fault: str, etags: bool, known: dict[str, Any]) -> None:
    if fault == "no length, cut off" and "size" not in known:
        pytest.skip("a cut that nobody can see; the next test")
    net.server.etags, net.server.faults["/file"] = etags, list(FAULTS[fault])
    net.get(**known)
    net.is_whole()
    assert net.server.faults["/file"] == []


def test_a_cut_that_only_the_hash_can_see_is_no_file(net: Net) -> None:
    net.server.faults["/file"] = [Fault(cut=200_000, no_length=True)]
    net.fails("has the sha256", sha256=sha(BODY))


def test_what_arrived_is_not_asked_for_again(net: Net) -> None:
    net.server.faults["/file"] = [Fault(cut=100_000), Fault(cut=150_000)]
    net.get(sha256=sha(BODY))
    assert net.server.asked("/file") == ["", "bytes=100000-", "bytes=250000-"]
    assert net.server.seen[1][1]["If-Range"] == etag(BODY)
    assert net.server.sent == len(BODY)


def test_a_later_process_goes_on_where_an_earlier_one_ended(net: Net) -> None:
    net.server.faults["/file"] = [Fault(cut=100_000), *[Fault(status=500)] * 9]
    net.fails("HTTP 500")
    net.server.faults["/file"] = []
    net.get()
    net.is_whole()
    assert net.server.asked("/file")[-1] == "bytes=100000-"
    assert net.server.sent == len(BODY) + 8 * 4  # the bodies of the 500s


def test_without_etag_and_hash_nothing_shows_that_it_is_the_same_file_so_it_begins_again(net: Net) -> None:
    net.server.etags, net.server.faults["/file"] = False, [Fault(cut=100_000)]
    net.get()
    net.is_whole()
    assert net.server.asked("/file") == ["", ""]


@pytest.mark.parametrize("polite", [True, False], ids=["If-Range kept", "If-Range ignored"])
@pytest.mark.parametrize("longer", [0, 5, -250_000], ids=["as long", "longer", "shorter than what is here"])
def test_two_versions_of_a_file_are_never_joined(net: Net, polite: bool, longer: int) -> None:
    other = OTHER[:longer] if longer < 0 else OTHER + b"x" * longer
    net.server.faults["/file"] = [Fault(cut=100_000), Fault(body=other, ignore_if_range=not polite)]
    assert net.get().sha256 == sha(other)
    net.is_whole(other)


def test_two_versions_without_etags_are_told_apart_by_the_hash(net: Net) -> None:
    net.server.etags, net.server.files["/file"] = False, OTHER
    net.server.faults["/file"] = [Fault(cut=100_000), Fault(body=BODY)]
    net.get(sha256=sha(BODY))
    net.is_whole()
    assert net.server.asked("/file") == ["", "bytes=100000-", ""]


def test_a_wrong_hash_is_refused_and_its_bytes_are_not_gone_on_with(net: Net) -> None:
    net.fails(f"has the sha256 {sha(BODY)}, not {sha(OTHER)}", sha256=sha(OTHER))
    net.server.files["/file"] = OTHER
    net.get(sha256=sha(OTHER))
    net.is_whole(OTHER)


def test_a_wrong_md5_is_refused(net: Net) -> None:
    net.fails("has the md5", md5="0" * 32)
    assert "md5" in net.get(md5=hashlib.md5(BODY, usedforsecurity=False).hexdigest()).known


def test_a_wrong_length_is_refused_before_it_is_read(net: Net) -> None:
    net.server.files["/file"] = bytes(50_000_000)
    net.fails("has 50000000 bytes, not 7", size=7)
    assert net.server.sent == 0  # the answer was hung up on


def test_the_hash_that_the_hub_names_is_checked(net: Net) -> None:
    named = {"X-Linked-Etag": f'"{sha(OTHER)}"'}
    net.server.faults["/file"] = [Fault(headers=named)]
    net.fails(f"not {sha(OTHER)}")
    net.server.faults["/file"] = [Fault(status=302, headers={"Location": "/cdn", "X-Linked-Etag": f'"{sha(BODY)}"'})]
    net.server.files["/cdn"] = BODY
    assert net.get().known == "named by the server"


@pytest.mark.parametrize(("fault", "says"), [
    (Fault(status=404), "HTTP 404"), (Fault(status=403), "HTTP 403"),
    (Fault(headers={"Content-Type": "text/html; charset=utf-8"}), "web page"),
    (Fault(headers={"Content-Encoding": "gzip"}), "packed as gzip")])
def test_what_will_not_pass_is_not_tried_again(net: Net, fault: Fault, says: str) -> None:
    net.server.faults["/file"] = [fault]
    net.fails(says)
    assert len(net.server.seen) == 1


def test_a_dead_server_is_given_up_after_the_retries(net: Net) -> None:
    net.server.faults["/file"] = [Fault(status=500)] * 99
    net.fails("HTTP 500", policy=HASTY)
    assert len(net.server.seen) == HASTY.retries + 1


def test_an_attempt_that_brings_a_byte_counts_as_none_that_failed(net: Net) -> None:
    net.server.faults["/file"] = [Fault(cut=10_000)] * 25
    net.get()
    net.is_whole()


def test_a_server_that_cannot_be_reached_is_an_error_of_that_address(net: Net) -> None:
    way = (Piece("http://127.0.0.1:9/file"),)
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/file: ConnectError"):
        download(FileRequest(net.path, (way,)), net.http, HASTY)


@pytest.mark.parametrize("place", ["file", "folder", "http"])
def test_the_first_way_that_has_the_file_is_taken(net: Net, tmp_path: Path, place: str) -> None:
    mirror = tmp_path / "a mirror"
    mirror.mkdir()
    (mirror / "file").write_bytes(BODY)
    net.server.files["/mirror/file"] = BODY
    url = {"file": (mirror / "file").as_uri(), "folder": str(mirror / "file"), "http": f"{net.server.url}/mirror/file"}
    ways = ((Piece(f"{net.server.url}/none"),), (Piece(url[place]),), (Piece(f"{net.server.url}/file"),))
    fetched = download(FileRequest(net.path, ways, sha256=sha(BODY)), net.http, HASTY)
    net.is_whole()
    assert fetched.url == url[place]
    assert "/file" not in [path for path, _ in net.server.seen]


def test_a_mirror_with_a_wrong_file_is_passed_over(net: Net, tmp_path: Path) -> None:
    (tmp_path / "mirrored").write_bytes(OTHER)
    ways = ((Piece(str(tmp_path / "mirrored"), None, sha(BODY)),), (Piece(f"{net.server.url}/file", None, sha(BODY)),))
    download(FileRequest(net.path, ways, sha256=sha(BODY)), net.http, HASTY)
    net.is_whole()


class Parts(NamedTuple):
    net: Net
    request: FileRequest

    def get(self) -> None:
        download(self.request, self.net.http, HASTY)
        self.net.is_whole()


@pytest.fixture
def parts(net: Net) -> Parts:
    cuts = {"/aa": BODY[:100_000], "/ab": BODY[100_000:100_001], "/ac": BODY[100_001:]}
    net.server.files |= cuts
    way = tuple(Piece(net.server.url + name, len(body), sha(body)) for name, body in cuts.items())
    return Parts(net, FileRequest(net.path, (way,), len(BODY), sha(BODY)))


def test_parts_are_joined(parts: Parts) -> None:
    parts.get()
    assert [path for path, _ in parts.net.server.seen] == ["/aa", "/ab", "/ac"]


def test_parts_go_on_in_the_part_where_they_stopped(parts: Parts) -> None:
    parts.net.server.faults["/ac"] = [Fault(cut=50_000), *[Fault(status=500)] * 9]
    with pytest.raises(DataError):
        parts.get()
    parts.net.server.faults["/ac"], parts.net.server.seen[:] = [], []
    parts.get()
    assert [(path, headers["Range"]) for path, headers in parts.net.server.seen] == [("/ac", "bytes=50000-")]


def test_a_part_that_is_wrong_is_named(parts: Parts) -> None:
    parts.net.server.files["/ac"] = OTHER[100_001:]
    with pytest.raises(DataError, match=r"/ac: has the sha256"):
        parts.get()
    parts.net.server.files["/ac"] = BODY[100_001:]
    parts.get()


def test_parts_after_a_half_copied_mirror_hold_none_of_its_bytes(parts: Parts) -> None:
    server, mirror = parts.net.server, Piece(f"{parts.net.server.url}/mirror", len(BODY), sha(BODY))
    server.files["/mirror"] = OTHER
    server.faults["/mirror"] = [Fault(cut=200_000), *[Fault(status=500)] * 9]
    request = FileRequest(parts.request.path, ((mirror,), *parts.request.alternatives), len(BODY), sha(BODY))
    Parts(parts.net, request).get()


def test_a_full_disk_is_told_before_a_byte_is_read(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(DataError, match=r"0\.0 GB to download and 0\.0 GB free"):
        net.get()
    assert not net.path.exists()
    with pytest.raises(DataError, match=r"64\.6 GB to download"):
        check_disk_space(net.path / "not" / "there" / "yet", 64_559_075_373)


def test_a_disk_that_fills_while_it_is_written_is_one_message_and_no_file(
        net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(chunks: Any, file: Any, advance: Any) -> None:
        file.write(next(iter(chunks))[:1000])
        file.flush()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "_write", full)
        with pytest.raises(DataError, match=r"file\.bin: cannot be written: No space left on device"):
            net.get()
    assert not net.path.exists()
    net.get()
    net.is_whole()
    assert net.server.asked("/file")[-1] == "bytes=1000-"
