"""Strict configuration models with readable errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from turncredit.errors import ConfigError, nearest

_Model = TypeVar("_Model", bound=BaseModel)
_PYDANTIC_ERRORS = frozenset(get_args(ErrorType))


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys, NaN and infinity.

    Attributes:
        CODE: the values of the keys that ``reading: code`` sets, where the configuration names none
            (``config.reading``). Their defaults are those of ``reading: text``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    CODE: ClassVar[Mapping[str, Any]] = {}

    def hashed_fields(self, *, exclude: AbstractSet[str] = frozenset()) -> dict[str, Any]:
        """The values that decide a hash, as JSON: those that differ from their defaults, at any depth.

        A new key with a default changes no existing hash. In return the default of a hashed key must
        never change: write another value into the YAML files instead (a test pins the defaults).
        """
        return self.model_dump(mode="json", exclude=set(exclude), exclude_defaults=True)


def optional(**rules: Any) -> Any:
    """A key that is left out of dumps while it is null."""
    return Field(None, exclude_if=lambda value: value is None, **rules)


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys: plain YAML would silently keep the last one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Check a mapping's own keys, before ``<<`` merges others into it."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen.add(key.value)
        return node


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains one mapping.

    Raises:
        ConfigError: the file is unreadable or not YAML, has a duplicate key, or is not a mapping.
    """
    try:
        with path.open(encoding="utf-8") as file:  # the open file and not its text: YAML errors then name the file
            content = yaml.load(file, _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}", "correct the YAML") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping at the top level", "correct the YAML")
    return content


def validate_as(model: type[_Model], value: Any, *place: str) -> _Model:
    """A value as a ``model`` that other values choose, e.g. a task's settings by the task's name.

    For validators: ``explain`` describes the raised faults as those of any section.

    Args:
        model: the chosen model.
        value: the mapping to validate.
        place: the keys from the validator's own place to ``value``.

    Raises:
        ValidationError: the value breaks the model.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValidationError.from_exception_data(model.__name__, [_placed(f, place, model) for f in error.errors()]) \
            from None


def refuse(value: Any, fault: str, *place: str) -> ValidationError:
    """The fault of one value, for validators to raise; ``place`` as in ``validate_as``."""
    return ValidationError.from_exception_data("value", [
        {"type": PydanticCustomError("refused", "{fault}", {"fault": fault}), "loc": place, "input": value}])


def missing(*place: str) -> ValidationError:
    """The fault of a missing key, for validators to raise."""
    return ValidationError.from_exception_data("value", [{"type": "missing", "loc": place, "input": None}])


def _placed(fault: ErrorDetails, place: tuple[str, ...], model: type[BaseModel]) -> InitErrorDetails:
    """A fault of a chosen model, moved to ``place``; an unknown key carries the keys that the model knows."""
    kind: str | PydanticCustomError = fault["type"]
    if kind == "extra_forbidden":
        loc = [str(part) for part in fault["loc"][:-1] if part != "[key]"]
        kind = PydanticCustomError("unknown_key", "unknown key", {"known": _known_keys(loc, model)})
    elif kind not in _PYDANTIC_ERRORS:  # a validator's own
        kind = PydanticCustomError("refused", "{fault}", {"fault": fault["msg"]})
    return {"type": kind, "loc": (*place, *fault["loc"]), "input": fault["input"], "ctx": fault.get("ctx", {})}


def explain(error: ValidationError, root: type[BaseModel]) -> str:
    """Pydantic's errors of a ``root`` model in one line: key, value, what is wrong, nearest known word.

    An error that a YAML anchor repeats in several sections is reported once, with all its places.
    """
    places: dict[tuple[str, str, str], list[str]] = {}
    for fault in error.errors():
        loc = [str(part) for part in fault["loc"] if part != "[key]"]
        key = loc.pop() if loc else ""
        before, after = _words(fault, key, loc, root)
        places.setdefault((before, key, after), []).append(".".join(loc))
    messages = []
    for (before, key, after), (first, *others) in places.items():
        also = f" (also in {', '.join(others)})" if others else ""
        messages.append(f"{before}{'.'.join(filter(None, (first, key)))}{also}{after}")
    return "; ".join(messages)


def _words(fault: ErrorDetails, key: str, section: list[str], root: type[BaseModel]) -> tuple[str, str]:
    """The words of a message before and after the key."""
    message = str(fault["msg"])
    if fault["type"] == "extra_forbidden":
        return "unknown key ", f"; {nearest(key, _known_keys(section, root))}"
    if fault["type"] == "unknown_key":
        return "unknown key ", f"; {nearest(key, fault['ctx']['known'])}"
    if fault["type"] == "missing":
        return "", " is missing: add it"
    if fault["type"] == "value_error":  # a validator of a whole section: its text begins with the key
        text = message.removeprefix("Value error, ")
        return "", text if text.startswith(" ") else ("." if key else "") + text
    if fault["type"] == "literal_error":
        allowed = re.findall(r"'([^']+)'", fault["ctx"]["expected"])
        message += f"; {nearest(str(fault['input']), allowed)}"
    return "", f" = {fault['input']!r}: {message}"


def _known_keys(loc: list[str], root: type[BaseModel]) -> list[str]:
    """The keys of the model at ``loc`` inside ``root``."""
    model = root
    parts = iter(loc)
    for part in parts:
        annotation = model.model_fields[part].annotation
        inside = get_args(annotation)
        if get_origin(annotation) is dict:
            next(parts, None)  # a free name
        model = next(a for a in (*inside, annotation) if isinstance(a, type) and issubclass(a, BaseModel))
    return list(model.model_fields)
