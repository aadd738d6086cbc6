"""Commands for the policies that RL training starts from: tokenizer, base policies, and pretrained policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.options import Base, Root, ScaleName, scale_at
from turncredit.config.paths import base_folder
from turncredit.errors import ConfigError
from turncredit.workflow.inputs import task_experiments

policies = typer.Typer()
PANEL = "Policies"


@policies.command(rich_help_panel=PANEL)
def tokenizer(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train the tokenizer on the passages and questions, or copy that of ``policy.path_or_id``."""
    from turncredit.miniature.warm_start import make_tokenizer

    make_tokenizer(root / "data" / scale, scale_at(scale, root).policy, root / "policy" / scale / "tokenizer")


@policies.command("base-policy", rich_help_panel=PANEL)
def base_policy(base: Base = 0, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Warm-start a base policy: the expert policy and each task's initial policy, until the gates are passed."""
    from turncredit.miniature.base_policies import make_base_policy
    from turncredit.miniature.difficulty import measure

    settings = scale_at(scale, root)
    data, index, policy = (root / part / scale for part in ("data", "index", "policy"))
    make_base_policy(settings, base, data, index, policy / "tokenizer", root / base_folder(scale, base), measure)


@policies.command("import-policy", rich_help_panel=PANEL)
def import_policy(checkpoint: Annotated[str | None, typer.Option(help="one of the scale's `checkpoints`")] = None,
                  scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Import a pretrained policy: the initial policies of a scale without a warm start, or one of its checkpoints."""
    from turncredit.data.sources import load_registry
    from turncredit.policy import pretrained

    settings, registry = scale_at(scale, root), load_registry(root)
    if checkpoint is not None:
        source = settings.checkpoint(checkpoint)
        pretrained.import_policy(source.path_or_id, source.revision, registry,
                                 root / "policy" / scale / "checkpoints" / checkpoint)
        return
    if settings.warm_start is not None or settings.policy.path_or_id is None:
        raise ConfigError(f"scale {scale!r} trains its own initial policies",
                          f"turncredit base-policy --scale {scale}")
    for task in task_experiments(settings):
        pretrained.import_policy(settings.policy.path_or_id, settings.policy.revision, registry,
                                 root / base_folder(scale, 0) / "initial" / task)
