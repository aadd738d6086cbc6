"""Commands for questions, passages, indexes, and the retrieval server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.options import RetrieverName, Root, ScaleName, scale_at

data = typer.Typer()
PANEL = "Data and retrieval"


@data.command(rich_help_panel=PANEL)
def world(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Write the passages and questions of a scale: generated ones, or those that were downloaded."""
    from turncredit.miniature.build import build_world

    settings = scale_at(scale, root)
    if settings.questions is not None:
        prepare_data(scale, root)
    else:
        build_world(settings.require_world(), root / "data" / scale)


@data.command(rich_help_panel=PANEL)
def fetch(names: Annotated[list[str] | None, typer.Argument(help="sources in config/sources.yaml")] = None,
          scale: Annotated[str | None, typer.Option(help="also all sources that this scale reads")] = None,
          verify: Annotated[bool, typer.Option("--verify", help="read finished downloads again, and compare")] = False,
          root: Root = Path()) -> None:
    """Download and check sources; an interrupted download is continued. Without names, list all sources."""
    from turncredit.data.fetch import fetch as fetch_sources
    from turncredit.data.fetch import is_fetched
    from turncredit.data.sources import load_registry

    registry = load_registry(root)
    if not names and scale is None:
        for name, source in registry.sources.items():
            size = f"{source.bytes / 1e9:.2f} GB" if source.bytes else "size unknown"
            state = "here" if is_fetched(registry, name) else size
            typer.echo(f"{name:24} {state:>12}  {source.title}; licence: {source.licence}")
        return
    needed = registry.needed(scale_at(scale, root)) if scale is not None else []
    if scale is not None and not needed:
        typer.echo(f"scale {scale} downloads nothing: its data are generated")
    fetch_sources(registry, dict.fromkeys([*(names or ()), *needed]), verify=verify)


@data.command("prepare-data", rich_help_panel=PANEL)
def prepare_data(scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Convert downloaded questions and passages to the files of a scale."""
    from turncredit.data.prepare import prepare
    from turncredit.data.sources import load_registry

    prepare(scale_at(scale, root), load_registry(root), root / "data" / scale)


@data.command(rich_help_panel=PANEL)
def passages(retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Check the passages and write their offsets in the corpus file, for a dense retriever."""
    from turncredit.retrieval.build import IndexPaths, make_table

    make_table(IndexPaths.of(scale_at(scale, root), retriever, root))


@data.command(rich_help_panel=PANEL)
def embed(shard: Annotated[int, typer.Option(help="number of the shard, from 0 to retriever.faiss.shards - 1")],
          retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Encode one shard of the passages; a finished shard is not encoded again."""
    from turncredit.retrieval.build import IndexPaths, make_shard

    make_shard(IndexPaths.of(scale_at(scale, root), retriever, root), shard)


@data.command(rich_help_panel=PANEL)
def index(retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Build a Lucene index of the passages, or a FAISS index of their vectors, or install a downloaded index."""
    from turncredit.retrieval.build import IndexPaths, make_index

    manifest = make_index(IndexPaths.of(scale_at(scale, root), retriever, root))
    typer.echo(f"{manifest.documents} passages in {manifest.seconds:.1f} s")


@data.command(rich_help_panel=PANEL)
def serve(retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path(),
          host: Annotated[str | None, typer.Option(help="address to listen at; default: retriever.server.host")] = None,
          port: Annotated[int, typer.Option(help="port to listen at; 0: any free port")] = 0,
          linger_s: Annotated[float | None, typer.Option(
              help="publish the address for training jobs, and exit after this many seconds without a user")] = None,
          ) -> None:
    """Serve an index with Search-R1's /retrieve protocol until interrupted. Training starts its own server."""
    from turncredit.retrieval.build import IndexPaths
    from turncredit.retrieval.server import serve as serve_index

    paths = IndexPaths.of(scale_at(scale, root), retriever, root)
    serve_index(paths.index, paths.config, host=host, port=port, linger_s=linger_s)
