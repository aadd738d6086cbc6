"""Inputs that several tests of reporting read and none changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import synthetic_runs as synthetic
from turncredit.reporting.reported import Reported, read_reported
from turncredit.reporting.scores import Results


@pytest.fixture(scope="session")
def reported() -> Reported:
    return read_reported(Path(__file__).parents[2] / "paper_tables" / "reported")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return synthetic.results(tmp_path_factory.mktemp("runs"), synthetic.ALL)
