"""Fictional copies of true texts: every name of the world swapped for another of its kind.

A policy that is trained on renamed texts must copy names from a passage instead of memorising them: it
sees every name of the world, but no true fact about any of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from turncredit.miniature.facts import Facts

_WORD = re.compile(r"\w+|\W")


class Renamer:
    """Finds the names of a world in texts and swaps them.

    Args:
        kinds: each name with its kind (country, city, currency, ...); names are found at word
            borders, the longest one first.
        known: names of the countries whose facts a policy may know by heart.

    Attributes:
        names_of: kind -> its names, the longest first.
        known: as given.
    """

    def __init__(self, kinds: Mapping[str, str], known: Collection[str] = ()) -> None:
        self._kinds = dict(kinds)
        self.known = frozenset(known)
        self.names_of: dict[str, list[str]] = {}
        self._by_first_word: dict[str, list[tuple[tuple[str, ...], str]]] = {}
        for name in sorted(kinds, key=lambda name: (-len(name), name)):
            words = tuple(_WORD.findall(name))
            self._by_first_word.setdefault(words[0], []).append((words, name))
            self.names_of.setdefault(kinds[name], []).append(name)

    @classmethod
    def of(cls, facts: Facts, cities: Iterable[str], known: Collection[str] = ()) -> Renamer:
        """All names that passages and questions may hold; a name of two kinds takes the first of them."""
        kinds: dict[str, str] = dict.fromkeys(facts.countries, "country")
        for (_, relation), value in sorted(facts.values.items()):
            kinds.setdefault(value, relation if relation in ("currency", "language") else "city")
        for city in cities:
            kinds.setdefault(city, "city")
        return cls(kinds, known)

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """``text`` cut into (piece, is a name); the pieces joined are the text.

        >>> Renamer({"Chad": "country", "Guinea": "country", "Guinea-Bissau": "country"}).pieces("of Guinea-Bissau.")
        [('of ', False), ('Guinea-Bissau', True), ('.', False)]
        """
        words, found, plain, i = _WORD.findall(text), [], "", 0
        while i < len(words):
            named = self._by_first_word.get(words[i], ())
            match = next(((name, len(parts)) for parts, name in named if tuple(words[i:i + len(parts)]) == parts), None)
            if match is None:
                plain, i = plain + words[i], i + 1
                continue
            name, length = match
            if plain:
                found.append((plain, False))
            found.append((name, True))
            plain, i = "", i + length
        return [*found, (plain, False)] if plain else found

    def kind(self, name: str) -> str:
        """The kind of a known name."""
        return self._kinds[name]

    def names_in(self, text: str) -> list[str]:
        """The names in ``text``, in order."""
        return [piece for piece, is_name in self.pieces(text) if is_name]

    def rename(self, texts: Sequence[str], rng: random.Random) -> list[str]:
        """The texts of one episode under one random renaming: equal names stay equal.

        Each name is drawn independently, so two names may become one, and a name may stay unchanged.
        """
        other: dict[str, str] = {}

        def swapped(name: str) -> str:
            return other.setdefault(name, rng.choice(self.names_of[self.kind(name)]))

        return ["".join(swapped(piece) if is_name else piece for piece, is_name in self.pieces(text)) for text in texts]
