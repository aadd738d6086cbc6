"""Makes a base policy: the policies of the first warm start whose difficulty passes the gates.

Results of RL training from one policy may not hold for another, so base policies are a random factor of the study.
The same seed gives different weights on different types of CPU (rounding). The gates keep the difficulty comparable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from turncredit.config.data import WarmStartConfig
from turncredit.config.load import Scale
from turncredit.errors import ConfigError, DataError, nearest
from turncredit.files import atomic_folder
from turncredit.miniature.warm_start import make_expert, make_initial
from turncredit.policy.attempts import Attempt, write_attempts

# (scale, folder of a base policy, data, index) -> measured difficulty by name
Measure = Callable[[Scale, Path, Path, Path], Mapping[str, float]]


def make_base_policy(scale: Scale, base: int, data: Path, index: Path, tokenizer: Path, output: Path,
                     measure: Measure) -> None:
    """Warm-start policies with one seed after the other until their difficulty passes the gates.

    Args:
        scale: ``warm_start`` holds the seeds, the number of attempts and the gates.
        base: index of the base policy.
        data: the scale's questions and passages.
        index: the index of its retriever.
        tokenizer: the scale's tokenizer.
        output: replaced by a folder with ``expert``, ``initial/<task>`` and attempts.csv.
        measure: measures a base policy's difficulty; not called where there are no gates.

    Raises:
        ConfigError: no warm start at this scale, no such base policy, or a gate on a number that is not measured.
        DataError: no attempt passed; the message lists what was measured. Or a file of the world is missing.
        NonFiniteError: a warm start diverged.
        RetrieverError: the retriever cannot be reached.
    """
    warm_start = scale.require_warm_start()
    scale.check_base(base)
    attempts: list[Attempt] = []
    with atomic_folder(output) as fresh:
        for n in range(warm_start.attempts):
            seed = warm_start.seed_of(base, n)
            seeded = scale.model_copy(update={"warm_start": warm_start.model_copy(update={"seed": seed})})
            make_expert(seeded, data, index, tokenizer, fresh / "expert")
            for task in {task.name: task for task in map(scale.task_of, reversed(scale.experiments))}.values():
                make_initial(seeded, task, data, index, fresh / "expert", fresh / "initial" / task.name)
            measured = measure(seeded, fresh, data, index) if warm_start.gates else {}
            attempts.append(Attempt(seed, measured, faults(warm_start, measured)))
            print(_in_words(attempts[-1]), file=sys.stderr)
            if not attempts[-1].failed:
                write_attempts(fresh, attempts)
                return
        raise DataError(f"base policy {base} of scale {scale.name!r}: none of {warm_start.attempts} warm starts passes "
                        "the gates:\n  " + "\n  ".join(map(_in_words, attempts)),
                        "raise warm_start.attempts, or change the warm start so that its difficulty fits the gates")


def faults(warm_start: WarmStartConfig, measured: Mapping[str, float]) -> str:
    """The gates that measured numbers fail, in words; "" if none.

    Raises:
        ConfigError: a gate on a number that is not measured.
    """
    found = []
    for name, limits in warm_start.gates.items():
        if name not in measured:
            raise ConfigError(f"warm_start.gates.{name}: nothing of that name is measured", nearest(name, measured))
        if fault := limits.fault(measured[name]):
            found.append(f"{name} = {measured[name]:.3f} is {fault}")
    return "; ".join(found)


def _in_words(attempt: Attempt) -> str:
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in attempt.measured.items()) or "not measured"
    verdict = f"failed: {attempt.failed}" if attempt.failed else "taken"
    return f"warm start with seed {attempt.warm_start_seed}: {verdict} ({numbers})"
