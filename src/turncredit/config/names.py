"""Names that users choose in ``config/``: one pattern for each kind, shared by the configuration and the workflow.

They become folders and wildcards of rules. So a name starts with a letter or digit, and words that are folders already
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

ARM = "[A-Za-z0-9][A-Za-z0-9._+-]*"
EXPERIMENT = "[a-z][a-z0-9_]*"
RETRIEVER = CHECKPOINT = "[a-z0-9][a-z0-9._-]*"
TAKEN = {  # kind -> folders beside those of its names
    "arm": {"base"},
    "experiment": {"untrained", "credit_bench", "shipped", "imported", "base"},
    "retriever": {"lucene", "faiss", "server"},
    "checkpoint": {"initial", "expert", "closed_book"},
}


def _checked(kind: str, pattern: str) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name in TAKEN[kind]:
            raise ValueError(f"{name!r} is a folder that the workflow makes; choose another name for this {kind}")
        if not re.fullmatch(pattern, name):
            raise ValueError(f"{name!r} is no name for this {kind}: use {_in_words(pattern)}")
        return name
    return check


def _in_words(pattern: str) -> str:
    """The characters of a pattern.

    >>> _in_words(EXPERIMENT)
    'one of a-z, then any of a-z0-9_'
    """
    first, others = re.findall(r"\[([^]]+)\]", pattern)
    return f"one of {first}, then any of {others}"


ArmName = Annotated[str, AfterValidator(_checked("arm", ARM))]
ExperimentName = Annotated[str, AfterValidator(_checked("experiment", EXPERIMENT))]
RetrieverName = Annotated[str, AfterValidator(_checked("retriever", RETRIEVER))]
CheckpointName = Annotated[str, AfterValidator(_checked("checkpoint", CHECKPOINT))]
