"""The tag automaton: reads the blocks, the action and the format of a turn's sampled text.

A well-formed turn of the ``search`` task is one of::

    <think> ... </think><search> query </search>
    <think> ... </think><answer> text </answer>

and of ``tool_search``::

    <reasoning> ... </reasoning><tool> {"name": ..., "args": {...}} </tool>
    <reasoning> ... </reasoning><answer> text </answer>

Whitespace around and between blocks is free. Environment text never goes through this module:
``<information>`` and ``<result>`` in *sampled* text are always a fault of the model.

How doubtful text is read:

- Tags are exact: ``<ANSWER>``, ``< answer>`` and ``<answer/>`` are plain text.
- A block runs from its opening tag to the first closing tag of the same name. Tags in between are
  text of that block, never blocks: a tag quoted inside ``<think>`` is thought, not action.
- An action (``<search>``, ``<tool>``, ``<answer>``) has one of two rules (``Grammar.action``).
  ``first_block``: one that is unclosed, or that holds any known tag (nested), is no action. The first
  action block that opens decides; a later one is ignored, so a second answer can neither mend nor
  spoil the first. ``first_pair``: the first complete pair of action tags decides, wherever it stands
  and whatever it holds, as in the authors' code.
- A search or tool call with blank content is invalid; a blank answer is an answer (it ends the
  episode and matches nothing).
- Format is stricter than action: exactly the two blocks, in order, each closed, no known tag
  anywhere else, and nothing but whitespace outside them, also after the last tag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from turncredit.types import Turn

ActionRule = Literal["first_block", "first_pair"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """The tag names of a protocol (thought, call to the environment, its result, answer) and the rule of its action."""

    thought: str
    call: str
    result: str
    answer: str
    action: ActionRule = "first_block"

    @property
    def names(self) -> tuple[str, ...]:
        """All four tag names."""
        return (self.thought, self.call, self.result, self.answer)


SEARCH = Grammar("think", "search", "information", "answer")
TOOL = Grammar("reasoning", "tool", "result", "answer")

INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a turn.

    Attributes:
        name: the tag's name; "" for text outside every block (stray closing tags included).
        content: the text between the tags, or the stray text itself.
        closed: the closing tag is there (False for stray text).
        nested: the content holds a known tag.
    """

    name: str
    content: str
    closed: bool = False
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """What a turn does: ``name`` is the action's tag name or "invalid"; ``content`` is stripped.

    Names of the search task are "search", "answer" and "invalid"; of the two-turn task "tool",
    "answer" and "invalid".
    """

    name: str
    content: str = ""


def parse_blocks(text: str, grammar: Grammar = SEARCH) -> tuple[Block, ...]:
    """The turn as a sequence of blocks; whitespace between blocks is dropped.

    >>> [(b.name, b.content) for b in parse_blocks("<think>hm</think> <answer>Rome</answer>")]
    [('think', 'hm'), ('answer', 'Rome')]
    """
    tags = list(re.finditer(f"<(/?)({'|'.join(grammar.names)})>", text))
    blocks: list[Block] = []
    position, i = 0, 0  # everything before ``position`` is read; tags[i] is the next tag to look at
    while i < len(tags):
        opening = tags[i]
        if opening[1]:  # a stray closing tag stays part of the text outside
            i += 1
            continue
        blocks.append(Block("", text[position:opening.start()]))
        end = next((j for j in range(i + 1, len(tags)) if tags[j][1] and tags[j][2] == opening[2]), None)
        if end is None:
            blocks.append(Block(opening[2], text[opening.end():], nested=i + 1 < len(tags)))
            position, i = len(text), len(tags)
        else:
            content = text[opening.end():tags[end].start()]
            blocks.append(Block(opening[2], content, closed=True, nested=end > i + 1))
            position, i = tags[end].end(), end + 1
    blocks.append(Block("", text[position:]))
    return tuple(block for block in blocks if block.name or block.content.strip())


def parse_action(text: str, grammar: Grammar = SEARCH) -> Action:
    """The action of one turn's sampled text, by the grammar's rule (module docstring).

    >>> parse_action("<think> find it </think><search> capital of Italy </search>")
    Action(name='search', content='capital of Italy')
    >>> parse_action("<think> <answer> Rome </answer>").name
    'invalid'

    Raises:
        ValueError: the grammar has another rule.
    """
    match grammar.action:
        case "first_block":
            found = _first_block(text, grammar)
        case "first_pair":
            found = _first_pair(text, grammar)
        case _:
            raise ValueError(f"unknown rule of an action {grammar.action!r}: use 'first_block' or 'first_pair'")
    blank_call = found.name == grammar.call and not found.content
    return Action(INVALID) if blank_call else found


def final_turn_format(text: str, grammar: Grammar = SEARCH) -> bool:
    """Whether a final turn is one thought and one answer, each once and in this order (section 5.2).

    >>> final_turn_format("<think> I know </think><answer> Rome </answer>")
    True
    >>> final_turn_format("<answer> Rome </answer>")
    False
    """
    return _is_sequence(text, grammar, grammar.answer)


def intermediate_turn_format(turn: Turn, grammar: Grammar = SEARCH) -> bool:
    """Whether an intermediate turn is one thought and one call, answered by the environment.

    The result must be the observation that followed the turn, without an error: a turn that writes
    the result block itself is malformed, and so is a call that got no result.
    """
    succeeded = bool(turn.observation.text) and turn.observation.error is None
    return succeeded and _is_sequence(turn.text, grammar, grammar.call)


def has_each_once(text: str, names: Sequence[str]) -> bool:
    """Whether each tag opens once and closes once and the opening tags stand in this order; other text is free.

    >>> has_each_once("So <think> a </think> and <answer> b </answer>.", ("think", "answer"))
    True
    """
    once = all(text.count(f"<{slash}{name}>") == 1 for name in names for slash in ("", "/"))
    places = [text.find(f"<{name}>") for name in names]
    return once and places == sorted(places)


def _first_block(text: str, grammar: Grammar) -> Action:
    for block in parse_blocks(text, grammar):
        if block.name in (grammar.call, grammar.answer):
            return Action(block.name, block.content.strip()) if block.closed and not block.nested else Action(INVALID)
    return Action(INVALID)


def _first_pair(text: str, grammar: Grammar) -> Action:
    pair = re.search(rf"<({grammar.call}|{grammar.answer})>(.*?)</\1>", text, re.DOTALL)
    return Action(pair[1], pair[2].strip()) if pair else Action(INVALID)


def _is_sequence(text: str, grammar: Grammar, action: str) -> bool:
    blocks = parse_blocks(text, grammar)
    return [block.name for block in blocks] == [grammar.thought, action] and all(
        block.closed and not block.nested for block in blocks)
