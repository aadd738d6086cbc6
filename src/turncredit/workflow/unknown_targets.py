"""Files of figures and tables that no rule makes: their wildcard constraint, and an error with the nearest name."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from turncredit.errors import ConfigError, nearest
from turncredit.reporting.catalogue import BENCH_FIGURES, FIGURES, TABLES

# Folder -> what its pages are called, their names (the audit is a page too), and the suffixes of their files.
PAGES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "figures": ("figure", (*FIGURES, *BENCH_FIGURES), ("pdf", "png", "csv")),
    "paper_tables": ("table", (*TABLES, "audit"), ("csv", "md", "tex"))}


def unknown_page_folder(scales: Collection[str]) -> str:
    """Constraint of ``folder`` in ``{folder}/{scale}/{file}``: looks ahead, and matches only if no rule makes the file.

    Committed files and the other files of the audit do not match either.
    """
    made = [f"{folder}/({'|'.join(scales)})/({'|'.join(names)})[.]({'|'.join(suffixes)})$"
            for folder, (_, names, suffixes) in PAGES.items()]
    return f"(?!{'|'.join(made)}|.*/(shipped|reported|headline[.]txt|report[.]rst))({'|'.join(PAGES)})"


def refuse_unknown_page(folder: str, scale: str, file: str, scales: Collection[str]) -> NoReturn:
    """Raise the error for such a file.

    Raises:
        ConfigError: always; it names the nearest known scale, page or suffix.
    """
    kind, names, suffixes = PAGES[folder]
    name, _, suffix = file.partition(".")
    if scale not in scales:
        raise ConfigError(f"{folder}/{scale}: no scale {scale!r}", nearest(scale, scales))
    if name not in names:
        raise ConfigError(f"no {kind} {name!r}", nearest(name, names))
    raise ConfigError(f"no file of {kind} {name!r} ends in {suffix!r}", nearest(suffix, suffixes))
