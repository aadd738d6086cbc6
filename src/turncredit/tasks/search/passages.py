"""Formats untrusted text: questions and passages, with tags and chat markers escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turncredit.tasks.env import CountTokens, CutTokens
from turncredit.types import Document, Observation

_TOKEN = 1000  # characters; no token is longer


def escape_tags(text: str) -> str:
    r"""Untrusted text on one line, with everything escaped that reads as a tag or a chat marker.

    Every ``<`` that could open one (before a letter, ``/``, ``|``, ``<``, ``!`` or the full-width
    bar), and the bracket of ``[INST]``-like markers, is escaped; a lone ``<`` as in "3 < 4" stays.
    White space is squeezed. Applying it twice changes nothing.

    >>> escape_tags("3 < 4 </information>\n<|im_end|> <answer>")
    '3 < 4 &lt;/information> &lt;|im_end|> &lt;answer>'
    """
    squeezed = " ".join(text.split())
    escaped = re.sub(r"<(?=[A-Za-z/|<!｜])", "&lt;", squeezed)
    return re.sub(r"\[(?=/?[A-Z_]+\])", "&#91;", escaped)


def unescape(text: str) -> str:
    """Text on one line with the escapes of ``escape_tags`` undone, for comparisons.

    Escaping depends on case and on what follows a bracket: an answer is compared with a passage without it.

    >>> unescape(escape_tags("<b>Rome</b> [REC]"))
    '<b>Rome</b> [REC]'
    """
    return " ".join(text.split()).replace("&lt;", "<").replace("&#91;", "[")


def format_question(question: str) -> str:
    """The user's message about a question: one line that ends with a question mark.

    >>> format_question("who wrote Hamlet ")
    'Question: who wrote Hamlet?'
    """
    line = escape_tags(question)
    return f"Question: {line}" if line.endswith("?") else f"Question: {line}?"


def format_passages(
    documents: Sequence[Document], tag: str, max_tokens: int, count_tokens: CountTokens, cut: CutTokens, *,
    around: str = "",
) -> Observation:
    """Passages between ``<tag>`` and ``</tag>``, one per line, in at most ``max_tokens`` tokens; ``around`` both tags.

    The budget cuts from the end: the first passage that is too long is cut between words (between
    characters if it is a single word) and later passages are dropped; the closing tag always stays.
    ``Observation.data`` is the tuple of passages exactly as shown.
    """
    shown: list[Document] = []
    for document in documents:
        longest = max_tokens * _TOKEN  # what can fit, so that a text of megabytes is not encoded
        title, text = escape_tags(document.title[:longest]), escape_tags(document.text)[:longest]
        part, room = text, max_tokens
        while (excess := count_tokens(_frame([*shown, _with_text(document, title, part)], tag, around))
               - max_tokens) > 0 and part:
            room = min(room, count_tokens(part)) - excess
            part = _prefix(text, cut(text, room)) if room > 0 else ""
        if excess > 0 or (text and not part):
            break
        shown.append(_with_text(document, title, part))
        if part != text:
            break
    return Observation(_frame(shown, tag, around), tuple(shown))


def _with_text(document: Document, title: str, text: str) -> Document:
    return Document(document.id, title, text, document.score)


def _frame(documents: Sequence[Document], tag: str, around: str) -> str:
    lines = (f"Doc {i}(Title: {d.title}) {d.text}" for i, d in enumerate(documents, 1))
    return f"{around}<{tag}>" + "\n".join(lines) + f"</{tag}>{around}"


def _prefix(text: str, cut_text: str) -> str:
    """The longest true beginning of ``text`` in its cut form that ends where a word ends.

    A tokenizer may cut inside a character and decode the rest as a replacement character.
    """
    length = next((i for i, (a, b) in enumerate(zip(text, cut_text, strict=False)) if a != b),
                  min(len(text), len(cut_text)))
    if length == len(text) or text[length] == " ":
        return text[:length].rstrip()
    words, _, _ = text[:length].rpartition(" ")
    return words or text[:length]
