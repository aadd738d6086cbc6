"""Tags and fixed texts of the search task (section 6.2; Search-R1's protocol).

A turn is ``<think> ... </think>`` and then ``<search> query </search>`` or ``<answer> text </answer>``.
After a search the environment writes ``<information>Doc 1(Title: ...) text`` and so on, one passage a
line, and ``</information>``; after an invalid turn it writes a fixed remark. Both stand inside the
assistant's message. The model has ``max_turns`` turns (N_max); the last one can only answer.
"""

from __future__ import annotations

from turncredit.tasks.search.environment import Fault, Rules
from turncredit.tasks.tags import SEARCH

INVALID_REMARK = "Invalid. Search or answer."


def read_call(content: str) -> str:
    """The query: all of a search block's content."""
    return content


RULES = Rules(
    grammar=SEARCH,
    read_call=read_call,
    remarks={Fault.NO_ACTION: INVALID_REMARK, Fault.TRUNCATED: INVALID_REMARK},
    instruction=(
        "Find the answer to the question below. Start each turn by reasoning between <think> and </think>, "
        "also about anything new that you have just read. To look up what you do not know, end the turn "
        "with <search> your query </search>: the passages found are then shown between <information> and "
        "</information>. You may search more than once. When you know enough, end the turn with "
        "the bare answer and no explanation, for example <answer> Beijing </answer>."
    ),
    hint="",
    instruction_role="user",
    reply_role=None,
)
