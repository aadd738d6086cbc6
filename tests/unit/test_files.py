"""A failed write leaves files and folders unchanged, whatever the error."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.errors import ConfigError, DataError
from turncredit.files import atomic, atomic_folder, disk_error, one_line, sha256, write_text
from turncredit.reporting.schema import read_cells


def put(path: Path, text: str) -> None:
    """Write through ``atomic`` or ``atomic_folder``, as the path's name says."""
    with (atomic(path) if path.suffix else atomic_folder(path)) as temporary:
        (temporary if path.suffix else temporary / "part").write_text(text)


def held(path: Path) -> str:
    return (path if path.suffix else path / "part").read_text()


def fail_half_way(path: Path, fault: BaseException) -> None:
    with (atomic(path) if path.suffix else atomic_folder(path)) as temporary:
        (temporary if path.suffix else temporary / "half").write_text("half")
        raise fault


PLACES = pytest.mark.parametrize("name", ["table.csv", "folder", "a b/with space.csv", "a b/with space"])
FAULTS = [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("a fault of the caller"),
          Exception("I/O error: No space left on device (os error 28)"), ConfigError("theirs")]


@PLACES
def test_what_is_written_is_there_and_nothing_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    put(path, "one")
    put(path, "two")
    assert held(path) == "two"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@PLACES
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("before", [None, "before"])
def test_on_any_fault_all_is_as_before(tmp_path: Path, name: str, fault: BaseException, before: str | None) -> None:
    path = tmp_path / name
    if before is not None:
        put(path, before)
    of_the_disk = disk_error(fault) is not None
    with pytest.raises(DataError if of_the_disk else type(fault)) as error:
        fail_half_way(path, fault)
    if of_the_disk:
        assert str(error.value) == f"{path}: cannot be written: No space left on device\n  -> " \
                                   "free some space or choose another folder"
    assert not path.exists() if before is None else held(path) == before
    assert [p.name for p in path.parent.iterdir()] == ([] if before is None else [path.name])


KILLED = """
import os, signal, sys
from pathlib import Path
from turncredit.files import atomic, atomic_folder
path = Path(sys.argv[1])
with (atomic(path) if path.suffix else atomic_folder(path)) as temporary:
    (temporary if path.suffix else temporary / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["table.csv", "folder"])
def test_a_killed_writer_changes_nothing_that_has_a_name(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, "before")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert held(tmp_path / name) == "before"
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == [name]


@pytest.mark.parametrize("writer", [atomic, atomic_folder])
def test_a_place_that_is_no_folder_is_named(tmp_path: Path, writer: Callable[[Path], Any]) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "x.csv"
    with pytest.raises(DataError, match=r"file/x\.csv: cannot be written: .*\n  -> "), writer(path):
        pytest.fail("there is nothing to write to")


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    write_text(tmp_path / "x.csv", "é\n")
    put(tmp_path / "folder", "")
    assert (tmp_path / "x.csv").read_bytes() == "é\n".encode()
    assert (tmp_path / "x.csv").stat().st_mode & 0o777 == 0o644
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~umask


def test_the_digest_is_of_the_bytes_and_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x00\r\n")
    assert sha256(tmp_path / "x") == hashlib.sha256(b"\x00\r\n").hexdigest()
    with pytest.raises(DataError, match="y: No such file or directory\n  -> make it again"):
        sha256(tmp_path / "y")


@pytest.mark.parametrize(("error", "says"), [
    (OSError(13, "Permission denied"), "Permission denied"),
    (OSError("of no number"), "of no number"),
    (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), "No space left on device"),
    (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 6016 vs 5972"), "the file is too short"),
    (RuntimeError("shapes do not match"), None), (DataError("theirs"), None)])
def test_the_disks_own_words_are_found_in_any_librarys_error(error: Exception, says: str | None) -> None:
    assert disk_error(error) == says


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=8), min_size=1, max_size=5))
def test_any_text_of_a_model_survives_a_csv_file(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """Each row stays one row, whatever a model sampled: the reader of results gives back the texts on one line."""
    path = tmp_path_factory.mktemp("csv") / "evaluation.csv"
    pd.DataFrame({"prediction": [one_line(text) for text in texts], "turns": range(len(texts))}).to_csv(
        path, index=False, lineterminator="\n")
    cells = read_cells(path)
    assert cells["prediction"].tolist() == [one_line(text) for text in texts]
    assert cells["turns"].tolist() == [str(n) for n in range(len(texts))]
