"""Commands for the policies that RL training starts from: tokenizer, warm starts, and pretrained policies."""

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
    """``expert`` imitates correct demonstrations; ``initial``, where a task starts, then degraded ones."""

    EXPERT = "expert"
    INITIAL = "initial"


@policies.command(rich_help_panel=PANEL)
def tokenizer(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train the tokenizer on the passages and questions, or copy that of ``policy.path_or_id``."""
    from turncredit.miniature.warm_start import make_tokenizer

    make_tokenizer(root / "data" / scale, scale_at(scale, root).policy, root / "policy" / scale / "tokenizer")


@policies.command("warm-start", rich_help_panel=PANEL)
def warm_start(kind: WarmStarted, task: Annotated[str, typer.Option(help="the task of an initial policy")] = "search",
               scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train a policy on demonstrations: the expert policy from scratch, or an initial policy from the expert."""
    from turncredit.miniature.warm_start import make_expert, make_initial

    settings = scale_at(scale, root)
    data, index, policy = (root / part / scale for part in ("data", "index", "policy"))
    if kind is WarmStarted.EXPERT:
        make_expert(settings, data, index, policy / "tokenizer", policy / "expert")
    else:
        played = settings.experiments[experiment_of_task(settings, task)].task
        make_initial(settings, played, data, index, policy / "expert", policy / "initial" / task)


@policies.command("import-policy", rich_help_panel=PANEL)
def import_policy(task: Annotated[str | None, typer.Option(help="the task of an initial policy")] = None,
                  checkpoint: Annotated[str | None, typer.Option(help="one of the scale's `checkpoints`")] = None,
                  scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Import a pretrained policy: the initial policy of a scale without a warm start, or one of its checkpoints."""
    from turncredit.data.sources import load_registry
    from turncredit.policy import pretrained

    settings, registry = scale_at(scale, root), load_registry(root)
    if (task is None) == (checkpoint is None):
        raise ConfigError("import-policy: pass exactly one of --task or --checkpoint",
                          "--task for an initial policy, --checkpoint for a policy that is evaluated only")
    if checkpoint is not None:
        source = settings.checkpoint(checkpoint)
        pretrained.import_policy(source.path_or_id, source.revision, registry,
                                 root / "policy" / scale / "checkpoints" / checkpoint)
    elif settings.warm_start is not None or settings.policy.path_or_id is None:
        raise ConfigError(f"scale {scale!r} trains its own initial policies",
                          f"turncredit warm-start initial --task {task}")
    else:
        played = settings.experiments[experiment_of_task(settings, str(task))].task.name
        pretrained.import_policy(settings.policy.path_or_id, settings.policy.revision, registry,
                                 root / "policy" / scale / "initial" / played)
