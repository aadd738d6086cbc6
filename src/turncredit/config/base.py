"""Settings as closed models: read from YAML, and faults explained in the file's own words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from turncredit.errors import ConfigError, nearest


class Closed(BaseModel):
    """A frozen model that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def optional(**rules: Any) -> Any:
    """A key that is not written down while it is null, so that it changes no digest of a run that lacks it."""
    return Field(None, exclude_if=lambda value: value is None, **rules)


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice, since the second would silently replace the first."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """See ``yaml``; here a mapping's own keys stand apart from those that ``<<`` merges into it."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return node


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: unreadable, no YAML, a key twice, or not a mapping.
    """
    try:
        with path.open(encoding="utf-8") as file:  # not its text: errors then tell the file's name
            content = yaml.load(file, _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}", "mend the YAML") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds no mapping", "mend the YAML")
    return content


def explain(error: ValidationError, root: type[BaseModel]) -> str:
    """Pydantic's faults of a ``root``, each as: key, value, what is wrong, nearest known word.

    A fault that several sections share, as those do that name one anchor, is told once.
    """
    places: dict[tuple[str, str, str], list[str]] = {}
    for fault in error.errors():
        loc = [str(part) for part in fault["loc"] if part != "[key]"]
        key = loc.pop() if loc else ""
        before, after = _words(fault, key, loc, root)
        places.setdefault((before, key, after), []).append(".".join(loc))
    told = []
    for (before, key, after), (first, *others) in places.items():
        also = f" (also in {', '.join(others)})" if others else ""
        told.append(f"{before}{'.'.join(filter(None, (first, key)))}{also}{after}")
    return "; ".join(told)


def _words(fault: ErrorDetails, key: str, section: list[str], root: type[BaseModel]) -> tuple[str, str]:
    """What is said of a fault before and after its place."""
    message = str(fault["msg"])
    if fault["type"] == "extra_forbidden":
        return "unknown key ", f"; {nearest(key, _known_keys(section, root))}"
    if fault["type"] == "missing":
        return "", " is missing: add it"
    if fault["type"] == "value_error":  # a check of a whole section, whose text begins with the key
        return "", ("." if key else "") + message.removeprefix("Value error, ")
    if fault["type"] == "literal_error":
        allowed = re.findall(r"'([^']+)'", fault["ctx"]["expected"])
        message += f"; {nearest(str(fault['input']), allowed)}"
    return "", f" = {fault['input']!r}: {message}"


def _known_keys(loc: list[str], root: type[BaseModel]) -> list[str]:
    """Keys of the model at ``loc`` inside a ``root``."""
    model = root
    parts = iter(loc)
    for part in parts:
        annotation = model.model_fields[part].annotation
        inside = get_args(annotation)
        if get_origin(annotation) is dict:
            next(parts, None)  # a name that the file gives
        model = next(a for a in (*inside, annotation) if isinstance(a, type) and issubclass(a, BaseModel))
    return list(model.model_fields)
