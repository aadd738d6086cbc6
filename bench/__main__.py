"""The command ``python -m bench``: measures this machine, then prints and saves every number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.options import Command, Root, ScaleName, prepare_process, scale_at

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def bench(steps: Annotated[int, typer.Option(min=2, help="measured steps of each arm, and of each comparison")] = 5,
          scale: ScaleName = "mini", root: Root = Path(),
          trl: Annotated[Path | None, typer.Option(help="a Python with TRL; default: .venv-trl/bin/python")] = None,
          vllm: Annotated[Path | None, typer.Option(
              help="a Python with vLLM's CPU build; default: .venv-vllm/bin/python")] = None) -> None:
    """Measure training steps, trees, retrieval and sampling on this machine, also against TRL and vLLM (minutes)."""
    prepare_process()
    from rich.console import Console

    from bench import peers
    from bench.results import save, tables
    from bench.run_all import run_benchmark

    compared = [peers.trl(trl or root / ".venv-trl/bin/python"), peers.vllm(vllm or root / ".venv-vllm/bin/python")]
    results = list(run_benchmark(scale_at(scale, root), root, steps, compared))
    save(results, root / "benchmarks" / scale / "bench.csv")
    Console(width=120).print(*tables(results), sep="\n")


if __name__ == "__main__":
    app(prog_name="python -m bench")
