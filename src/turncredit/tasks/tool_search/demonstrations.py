"""Demonstrations of the two-turn tool task: those of the search task, written as tool calls."""

from __future__ import annotations

import json

from turncredit.tasks.search.demonstrations import demonstrations_of
from turncredit.tasks.tags import TOOL
from turncredit.tasks.tool_search.protocol import RULES, TOOL_NAME


def _write_call(query: str) -> str:
    return json.dumps({"name": TOOL_NAME, "args": {"query": f" {query}"}})


DEMONSTRATIONS = demonstrations_of(TOOL, _write_call, (
    RULES.hint, ' {"name": "wiki_search", "args": {"query": " Error: no tool call bad JSON unknown tool bad arguments'))
