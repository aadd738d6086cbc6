"""Tags and fixed texts of the two-turn tool task (appendix E).

The first turn is ``<reasoning> ... </reasoning>`` and one JSON call between ``<tool>`` and ``</tool>``:
``{"name": "wiki_search", "args": {"query": "..."}}``. The environment replies with a user's message:
``<result>``, the passage in the same form as in the search task or a text that starts with "Error:",
``</result>``. The next turn is ``<reasoning> ... </reasoning><answer> text </answer>``.
"""

from __future__ import annotations

import json
from typing import Any

from turncredit.tasks.search.environment import Fault, Rules
from turncredit.tasks.tags import TOOL

TOOL_NAME = "wiki_search"


def read_call(content: str) -> str | Fault:
    """The query of a tool call, or the call's fault; only an exact call is executed.

    An exact call is one JSON object with the keys ``name`` and ``args`` and no other, no key twice;
    ``name`` is the tool's; ``args`` is an object whose only key ``query`` is a text that is not blank.

    >>> read_call('{"name": "wiki_search", "args": {"query": "Hamlet"}}')
    'Hamlet'
    >>> read_call('["wiki_search", "Hamlet"]')
    <Fault.BAD_JSON: 'bad_json'>
    """
    try:
        call = json.loads(content, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):  # not JSON, a number too long, nested too deep, a key twice
        return Fault.BAD_JSON
    if not isinstance(call, dict):
        return Fault.BAD_JSON
    if call.keys() != {"name", "args"}:
        return Fault.BAD_ARGUMENTS
    if call["name"] != TOOL_NAME:
        return Fault.UNKNOWN_TOOL
    args = call["args"]
    if not isinstance(args, dict) or args.keys() != {"query"}:
        return Fault.BAD_ARGUMENTS
    query = args["query"]
    if not isinstance(query, str) or not query.strip() or not _is_unicode(query):
        return Fault.BAD_ARGUMENTS
    return query.strip()


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; a repeated key is an error."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("repeated key")
    return members


def _is_unicode(text: str) -> bool:
    """Whether the text can be sent: JSON escapes may spell half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


RULES = Rules(
    grammar=TOOL,
    read_call=read_call,
    remarks={
        Fault.NO_ACTION: "<result>Error: no tool call</result>",
        Fault.TRUNCATED: "<result>Error: no tool call</result>",
        Fault.BAD_JSON: "<result>Error: bad JSON</result>",
        Fault.UNKNOWN_TOOL: "<result>Error: unknown tool</result>",
        Fault.BAD_ARGUMENTS: "<result>Error: bad arguments</result>",
    },
    instruction=(
        "You answer questions with the help of one tool. wiki_search(query: str) returns the passage of an "
        "encyclopedia that fits the query best. Go through these steps, each exactly once: "
        "1. reason about what to look up, between <reasoning> and </reasoning>; "
        '2. call the tool with one JSON object, as in <tool>{"name": "wiki_search", "args": {"query": '
        '"tallest mountain"}}</tool>; 3. read what comes back between <result> and </result>; '
        "4. reason about it, again between <reasoning> and </reasoning>; "
        "5. give the bare answer between <answer> and </answer>. The JSON must be valid and use no other "
        "tool or argument. If the result does not help, answer from what you know."
    ),
    hint="Tool: wiki_search",  # a policy that knows both protocols must be told which one to follow
    instruction_role="system",
    reply_role="user",
)
