"""Every error says what, where and what to do, and has an exit code of its kind."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from turncredit import errors
from turncredit.errors import TurncreditError, nearest

SOURCE = Path(errors.__file__).parent
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TurncreditError)]


def test_a_remedy_stands_on_a_line_of_its_own() -> None:
    error = TurncreditError("data/x.csv: row 3 is empty", "make it again")
    assert (str(error), error.message, error.remedy) == (
        "data/x.csv: row 3 is empty\n  -> make it again", "data/x.csv: row 3 is empty", "make it again")
    assert str(TurncreditError("no more to say")) == "no more to say"


def test_faults_that_call_for_different_acts_have_different_codes() -> None:
    codes = {kind.__name__: kind.exit_code for kind in KINDS}
    assert codes["Interrupted"] == 75  # EX_TEMPFAIL, which a workflow engine may retry
    apart = ["RetrieverError", "NonFiniteError", "RunLockedError", "ProcessError", "Interrupted"]
    assert len({codes[name] for name in apart} | {TurncreditError.exit_code}) == len(apart) + 1
    assert 1 not in codes.values()  # Python's own, of a traceback


def test_every_error_that_is_raised_has_a_remedy() -> None:
    names = {kind.__name__ for kind in KINDS}
    bare = [f"{path.relative_to(SOURCE)}:{node.lineno}" for path in SOURCE.rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
            and len(node.args) + len(node.keywords) < 2]
    assert bare == []


@pytest.mark.parametrize(("name", "known", "says"), [
    ("learnin_rate", ["learning_rate", "steps"], "did you mean 'learning_rate'?"),
    ("min", ["smoke", "mini"], "did you mean 'mini'?"),
    ("zzz", ["b", "a"], "known: a, b"),
    ("x", [], "known: ")])
def test_the_nearest_word_or_all_of_them(name: str, known: list[str], says: str) -> None:
    assert nearest(name, known) == says
