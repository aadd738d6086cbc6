"""Errors that a user can act on, each with an exit code of its own.

Every error says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TurncreditError(Exception):
    """Base of all errors that are the user's to mend; the CLI prints it without a traceback.

    Args:
        message: what is wrong and where (file, key, value).
        remedy: what to do about it.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}\n  -> {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class ConfigError(TurncreditError):
    """A configuration key or value that cannot be used."""


class DataError(TurncreditError):
    """A data file that is missing, altered or malformed."""


class RetrieverError(TurncreditError):
    """The retrieval server cannot be reached or answered with an error. Never 'no results'."""

    exit_code = 3


class NonFiniteError(TurncreditError):
    """A loss, gradient or log-probability is NaN or infinite; the last good checkpoint is kept."""

    exit_code = 4


class RunLockedError(TurncreditError):
    """Another process writes in this run directory."""

    exit_code = 5


class ProcessError(TurncreditError):
    """Another process of this run failed, died or did not answer in time; the last checkpoint is kept."""

    exit_code = 6


class CheckpointError(TurncreditError):
    """No readable checkpoint where one must be."""


class Interrupted(TurncreditError):
    """SIGTERM or SIGUSR1 arrived: the state is saved, run the same command again to go on."""

    exit_code = 75  # EX_TEMPFAIL: a workflow engine may retry


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known word nearest to ``name``, and all of them if none is near.

    >>> nearest("lamda", ["gamma", "lambda"])
    "did you mean 'lambda'?"
    """
    words = sorted(known)
    close = difflib.get_close_matches(name, words, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(words)}"
