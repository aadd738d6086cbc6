"""Commands for the policies before reinforcement: tokenizer, warm starts, and pretrained policies."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.options import Root, ScaleName, experiment_of_task, scale_at
from turncredit.errors import ConfigError

policies = typer.Typer()
PANEL = "Policies"


class WarmStarted(StrEnum):
    """A policy trained on flawless demonstrations (``clean``) or on flawed ones (``base``, where all arms start)."""

    CLEAN = "clean"
    BASE = "base"


@policies.command(rich_help_panel=PANEL)
def tokenizer(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train the tokenizer on the passages and questions, or copy that of ``policy.path_or_id``."""
    from turncredit.miniature.warm_start import make_tokenizer

    make_tokenizer(root / "data" / scale, scale_at(scale, root).policy, root / "policy" / scale / "tokenizer")


@policies.command("warm-start", rich_help_panel=PANEL)
def warm_start(kind: WarmStarted, task: Annotated[str, typer.Option(help="the task of a base policy")] = "search",
               scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train a policy on demonstrations: the clean one from scratch, or a base policy from the clean one."""
    from turncredit.miniature.warm_start import make_base, make_clean

    settings = scale_at(scale, root)
    data, index, policy = (root / part / scale for part in ("data", "index", "policy"))
    if kind is WarmStarted.CLEAN:
        make_clean(settings, data, index, policy / "tokenizer", policy / "clean")
    else:
        played = settings.experiments[experiment_of_task(settings, task)].task
        make_base(settings, played, data, index, policy / "clean", policy / "base" / task)


@policies.command("import-policy", rich_help_panel=PANEL)
def import_policy(task: Annotated[str | None, typer.Option(help="the task of a base policy")] = None,
                  checkpoint: Annotated[str | None, typer.Option(help="one of the scale's `checkpoints`")] = None,
                  scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Import a pretrained policy: the base policy of a scale without a warm start, or one of its checkpoints."""
    from turncredit.data.sources import load_registry
    from turncredit.policy import pretrained

    settings, registry = scale_at(scale, root), load_registry(root)
    if (task is None) == (checkpoint is None):
        raise ConfigError("import-policy: pass exactly one of --task or --checkpoint",
                          "--task for a base policy, --checkpoint for a policy that is evaluated only")
    if checkpoint is not None:
        source = settings.checkpoint(checkpoint)
        pretrained.import_policy(source.path_or_id, source.revision, registry,
                                 root / "policy" / scale / "checkpoints" / checkpoint)
    elif settings.warm_start is not None or settings.policy.path_or_id is None:
        raise ConfigError(f"scale {scale!r} trains its own base policies",
                          f"turncredit warm-start base --task {task}")
    else:
        played = settings.experiments[experiment_of_task(settings, str(task))].task.name
        pretrained.import_policy(settings.policy.path_or_id, settings.policy.revision, registry,
                                 root / "policy" / scale / "base" / played)
