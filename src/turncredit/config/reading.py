"""The readings of the paper: ``text``, what it says, and ``code``, what its authors' public code does.

A reading is a set of ordinary keys. Their defaults are the reading ``text``; the class attribute ``CODE`` of a
settings model holds the values of the reading ``code``. A key that the configuration names keeps its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from turncredit.config.base import StrictModel

Reading = Literal["text", "code"]
_Settings = TypeVar("_Settings", bound=StrictModel)


def under(reading: Reading, given: _Settings, overrides: Mapping[str, Any]) -> _Settings:
    """Settings under a reading: its values, then those that the configuration names, then ``overrides``.

    >>> from turncredit.config.training import TrainingConfig
    >>> [under("code", TrainingConfig(**given), {}).group_std for given in ({}, {"group_std": "population"})]
    ['sample', 'population']
    """
    code = type(given).CODE if reading == "code" else {}
    return type(given).model_validate({**code, **given.model_dump(exclude_unset=True), **overrides})
