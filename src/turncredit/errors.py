"""Errors that the user can fix: each tells what is wrong, where, and what to do, and has an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TurncreditError(Exception):
    """Base class of errors that the user can fix; the CLI prints them without a traceback.

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
    """A configuration key or value is invalid."""


class TaskError(TurncreditError):
    """A task plug-in that breaks its protocol: wrong rewards, or a request that no service answers."""


class DataError(TurncreditError):
    """A data file is missing, changed or malformed, or cannot be written."""


class RetrieverError(TurncreditError):
    """The retrieval server cannot be reached or returned an error; an empty result is no error."""

    exit_code = 3


class NonFiniteError(TurncreditError):
    """A loss, gradient or log-probability is NaN or infinite; the last good checkpoint is kept."""

    exit_code = 4


class RunLockedError(TurncreditError):
    """Another process writes to this run's folder."""

    exit_code = 5


class ProcessError(TurncreditError):
    """A process that a run needs failed, died or did not respond in time; the last checkpoint is kept."""

    exit_code = 6


class RankError(ProcessError):
    """Another rank of the run failed or is lost, so that ranks can do nothing together any more."""


class CheckpointError(TurncreditError):
    """A checkpoint is missing, damaged or does not fit the model."""


class Interrupted(TurncreditError):
    """SIGTERM or SIGUSR1 arrived; the state is saved, and the same command resumes."""

    exit_code = 75  # EX_TEMPFAIL: the workflow may retry


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word closest to ``name``, or all known words if none is close.

    >>> nearest("lamda", ["gamma", "lambda"])
    "did you mean 'lambda'?"
    """
    words = sorted(known)
    close = difflib.get_close_matches(name, words, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(words)}"
