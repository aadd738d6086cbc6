"""Write the conda environments envs/<name>.yaml with the pins of envs/<name>.txt, for clusters that use conda.

    python envs/to_conda.py            write them
    python envs/to_conda.py --check    exit with 1 if one differs
"""

from __future__ import annotations

import sys
from pathlib import Path

ENVS = Path(__file__).parent
NAMES = ("core", "gpu")


def conda(name: str) -> str:
    """The conda environment of ``<name>.txt``: conda installs Python, pip installs every pinned package."""
    pins = [line for line in (ENVS / f"{name}.txt").read_text().split("\n") if line and not line.startswith("#")]
    head = (f"# Made from {name}.txt by envs/to_conda.py.\nname: turncredit-{name}\n"
            "channels: [conda-forge, nodefaults]\n")
    listed = "".join(f"      - {pin}\n" for pin in pins)
    return f"{head}dependencies:\n  - python=3.11\n  - pip\n  - pip:\n{listed}"


if __name__ == "__main__":
    differ = [name for name in NAMES
              if not (path := ENVS / f"{name}.yaml").exists() or path.read_text() != conda(name)]
    if "--check" not in sys.argv:
        for name in differ:
            (ENVS / f"{name}.yaml").write_text(conda(name))
    elif differ:
        sys.exit(f"envs: {', '.join(differ)}.yaml differ from their .txt; run python envs/to_conda.py")
