"""Readings of the paper where its text and its authors' public code differ: ``text`` or ``code``.

A reading sets defaults of ordinary keys. The defaults in the settings models are those of ``text``; the class attribute
``CODE`` of a model holds the values of ``code`` where they differ. A key that the configuration names keeps its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from turncredit.config.base import StrictModel

Reading = Literal["text", "code"]
_Settings = TypeVar("_Settings", bound=StrictModel)


def with_reading(reading: Reading, given: _Settings, overrides: Mapping[str, Any]) -> _Settings:
    """Settings with the defaults of a reading, then the values that the configuration names, then ``overrides``.

    Args:
        reading: ``text`` or ``code``.
        given: the settings as configured; keys that were not set explicitly take the reading's value.
        overrides: values that replace both.

    Raises:
        ValidationError: the result is not valid.

    >>> from turncredit.config.training import TrainingConfig
    >>> [with_reading("code", TrainingConfig(**given), {}).group_std for given in ({}, {"group_std": "population"})]
    ['sample', 'population']
    """
    code = type(given).CODE if reading == "code" else {}
    return type(given).model_validate({**code, **given.model_dump(exclude_unset=True), **overrides})
