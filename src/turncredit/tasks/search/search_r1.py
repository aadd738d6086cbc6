"""The search protocol of Search-R1, word for word: ``task.prompt: search_r1``.

The policies of the paper's Table 2 were trained with these fixed texts, so its numbers can only be compared with
episodes that have them. They are facts of that protocol, taken from Search-R1's public repository
(PeterGriffinJin/Search-R1, Apache 2.0): the instruction from scripts/data_process/nq_search.py, the remark and the
frame of a result from search_r1/llm_agent/generation.py.
"""

from __future__ import annotations

from dataclasses import replace

from turncredit.tasks.search.environment import Fault, Rules
from turncredit.tasks.search.protocol import RULES

INSTRUCTION = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. You can search as "
    "many times as your want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>."
)
REMARK = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I "
    "want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
SEARCH_R1: Rules = replace(
    RULES, instruction=INSTRUCTION, after_question="\n", around_result="\n\n",
    remarks={Fault.NO_ACTION: REMARK, Fault.TRUNCATED: REMARK})
