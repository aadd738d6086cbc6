"""episodes.jsonl: a few whole episodes of a run, one group of episodes per line.

A line holds everything that a reader needs to see what happened: the prompt, the tokens of every turn,
what the environment appended, why the episode ended, and its rewards under every content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from turncredit.config.load import RunConfig
from turncredit.config.paths import run_key
from turncredit.errors import DataError, nearest
from turncredit.files import write_text
from turncredit.types import Group, StopReason, Transcript, Turn, TurnStop

Source = Literal["training", "evaluation"]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn: the text of each sampled token, and the observation that followed."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    stop: str
    observation: str = ""
    observation_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RewardRecord:
    """The rewards of one episode under one content (``credit.base.TrajectoryRewards``)."""

    intermediate_K: tuple[float, ...]
    outcome: float


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode: a leaf of its group.

    Attributes:
        nodes: the numbers of its turns in the tree (``types.Group.node_L_K``).
        turns: what was said and seen.
        stop: why it ended.
        rewards: under each content.
        metrics, components: as in evaluation.csv.
    """

    nodes: tuple[int, ...]
    turns: tuple[TurnRecord, ...]
    stop: str
    rewards: dict[str, RewardRecord]
    metrics: dict[str, float]
    components: dict[str, float]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The episodes of one item that were played together: a line of episodes.jsonl.

    Attributes:
        run: which run it is from (experiment, arm, base, seed; in collected files code and initial policy too).
        source: ``training``: a group of a training step, sampled. ``evaluation``: one episode of the final evaluation.
        step: the training step, from 1; None for evaluation.
        label: ``group``, or what the episode is an example of: ``right``, ``wrong``, ``malformed``.
        dataset, item_id: of the item.
        item: its fields, where it is a dataclass.
        prompt: the prompt as the model reads it.
        prompt_tokens: its length.
        episodes: one record for each leaf.
    """

    run: dict[str, Any]
    source: Source
    step: int | None
    label: str
    dataset: str
    item_id: str
    item: dict[str, Any]
    prompt: str
    prompt_tokens: int
    episodes: tuple[EpisodeRecord, ...]

    def group(self) -> Group:
        """The group as credit assignment sees it: turns, their lengths and what leaves share."""
        return Group(tuple(
            Transcript(self.item_id, (0,) * max(self.prompt_tokens, 1), tuple(
                Turn("", (0,) * len(turn.tokens), turn.logprobs, TurnStop(turn.stop),
                     observation_ids=(0,) * turn.observation_tokens) for turn in episode.turns),
                       StopReason(episode.stop)) for episode in self.episodes),
            tuple(episode.nodes for episode in self.episodes))

    def rewards(self, content: str) -> list[RewardRecord]:
        """The rewards of each leaf under a content."""
        return [episode.rewards[content] for episode in self.episodes]


def record_turn(turn: Turn, decode: Decode) -> TurnRecord:
    """A turn as text; a token that is part of a character decodes to a replacement character."""
    return TurnRecord(tuple(decode([token]) for token in turn.sampled_ids),
                      tuple(round(logprob, 4) for logprob in turn.logprobs), str(turn.stop), turn.observation.text,
                      len(turn.observation_ids), turn.observation.error)


def to_line(record: GroupRecord) -> str:
    """A record as one line of ASCII JSON: no sampled byte can break the file."""
    return json.dumps(asdict(record), ensure_ascii=True, allow_nan=False)


def episodes_path(evaluation: Path) -> Path:
    """The file of the whole episodes that belong to an evaluation.csv.

    >>> episodes_path(Path("evaluation.csv")).name
    'evaluation.episodes.jsonl'
    """
    return evaluation.with_suffix(".episodes.jsonl")


def step_episodes(folder: Path, step: int) -> Path:
    """The file in which a training step keeps its episodes until the run ends."""
    return folder / f"episodes-{step:06d}.jsonl"


def write_records(path: Path, records: Sequence[GroupRecord]) -> None:
    """Write episodes.jsonl, whole or not at all."""
    write_text(path, "".join(f"{to_line(record)}\n" for record in records))


def read_records(path: Path) -> list[GroupRecord]:
    """Read episodes.jsonl.

    Raises:
        DataError: the file is missing, or a line is not a record; names file:line.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", "train the run, or name a run that has episodes") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}", "evaluate the run again") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = _parse(json.loads(line))
            record.group()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}:{number}: not an episode record: {type(error).__name__}: {error}",
                            "evaluate the run again") from error
        records.append(record)
    return records


def read_run(folder: Path, arm: str | None = None) -> tuple[RunConfig, list[GroupRecord]]:
    """The kept episodes of a run or of collected runs, those of the final evaluation first; and the run's settings.

    Args:
        folder: a run's folder, or a folder of collected runs.
        arm: of collected runs; by default the first that has episodes.

    Raises:
        DataError: the folder has no episodes or no readable manifest, or no episodes of this arm.
    """
    files = [file for name in ("evaluation.episodes.jsonl", "episodes.jsonl") if (file := folder / name).exists()]
    records = [record for file in files for record in read_records(file)]
    if not records:
        raise DataError(f"{folder}: no episodes.jsonl with episodes", "name a run's folder, e.g. "
                        "results/mini/search/MT-PPO/base-0/seed-0; runs of other origin may have none")
    arms = list(dict.fromkeys(str(record.run["arm"]) for record in records))
    chosen = arm or arms[0]
    if chosen not in arms:
        raise DataError(f"{folder}: no episodes of arm {chosen!r}", nearest(chosen, arms))
    records = [record for record in records if record.run["arm"] == chosen]
    run = records[0].run
    lone = folder / "manifest.json"
    manifest = lone if lone.exists() else folder / "manifests.json"
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        own = content if lone.exists() else content[run_key(chosen, run["base"], run["seed"])]
        config = RunConfig.model_validate(own["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{manifest}: no readable configuration of {chosen}: {error!r}",
                        "name a folder that training or collect wrote") from error
    return config, sorted(records, key=lambda record: record.source)


def _parse(raw: Mapping[str, Any]) -> GroupRecord:
    known = {field.name for field in fields(GroupRecord)}
    if raw.keys() != known:
        raise ValueError(f"expected the keys {', '.join(sorted(known))}")
    episodes = tuple(
        EpisodeRecord(
            tuple(e["nodes"]),
            tuple(TurnRecord(**{**t, "tokens": tuple(t["tokens"]), "logprobs": tuple(t["logprobs"])})
                  for t in e["turns"]),
            e["stop"],
            {content: RewardRecord(tuple(r["intermediate_K"]), r["outcome"]) for content, r in e["rewards"].items()},
            e["metrics"], e["components"])
        for e in raw["episodes"])
    return GroupRecord(**{**raw, "episodes": episodes})
