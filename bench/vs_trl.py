"""Compares our GRPO step with TRL's GRPOTrainer; runs in TRL's environment.

Both train the same policy on the same prompts in this process, and alternate their steps. TRL runs its
own training loop; episodes of several turns use its tool calls. First, both losses and gradients are
checked to be equal on one of our batches, which TRL gets from a rollout function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import trl
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.cases import GROUP, GRPO, QUESTIONS, Case, OurSteps, Setting, StepCost, cases, comparison_run, even_share
from bench.peers import run_as_peer
from bench.results import Measured, with_spread
from turncredit.config.load import RunConfig
from turncredit.credit.base import make_estimator
from turncredit.credit.rows import rows_of
from turncredit.policy.model import load_policy
from turncredit.rollout.branching import branching_of
from turncredit.seeding import derive_seed
from turncredit.training.batch import Batch
from turncredit.training.run_folder import RunPaths

WARM_UP = 1
ROWS = 4  # rows of a forward pass in TRL: the fastest of 4, 8, 16 and 64
BETA = 0.04  # weight of the KL term where losses are compared
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4  # absolute (losses are of the size of 1), and relative
# Gives the same tokens as our codec: a sampled turn ends with its own tag, and a tool's message follows inside it. TRL
# takes the tool's tokens to be those after the assistant's last end token.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }}"
    "{{ call['function']['arguments'] | tojson }}{% endfor %}{{ eos_token }}"
    "{% elif message['role'] == 'tool' %}{{ message['content'] }}"
    "{% else %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt and messages[-1]['role'] != 'tool' %}<|assistant|>{% endif %}")
CALL = {"type": "function", "function": {"name": "search", "arguments": {"query": "place"}}}


class TimedTrainer(GRPOTrainer):
    """TRL's trainer, which records the time and the results of its sampling, and the last batch it trained on."""

    sampling_s: float
    prompts: list[list[int]]
    completions: list[list[int]]
    masks: list[list[int]] | None
    batch: dict[str, Tensor]

    def _generate(self, prompts: list) -> Any:
        started = time.perf_counter()
        made = super()._generate(prompts)
        self.sampling_s = time.perf_counter() - started
        self.prompts, self.completions, self.masks = made[:3]
        return made

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Tensor:
        """See ``Trainer.compute_loss``."""
        self.batch = inputs
        return super().compute_loss(model, inputs, *rest, **named)

    @property
    def tokens(self) -> int:
        """Number of tokens sampled in the last step."""
        return sum(map(len, self.completions)) if self.masks is None else sum(map(sum, self.masks))


class AfterEachStep(TrainerCallback):
    """Calls a function with the seconds of each of TRL's steps."""

    def __init__(self, act: Callable[[float], None]) -> None:
        self._act, self._started = act, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """See ``TrainerCallback``."""
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """See ``TrainerCallback``."""
        self._act(time.perf_counter() - self._started)


def make_trainer(setting: Setting, folder: Path, steps: int, *, rows: int, beta: float = 0.0,
                 **interface: Any) -> TimedTrainer:
    """TRL's trainer, with settings that make its step equal to ours.

    Args:
        setting: policy, prompts and sizes.
        folder: TRL's output folder.
        steps: number of training steps.
        rows: rows of one forward pass; gradients of several passes are accumulated.
        beta: weight of the KL term.
        interface: reward functions, tools or a rollout function.
    """
    task, training = setting.config.task, setting.config.training
    model = load_policy(setting.policy, "cpu")
    model.generation_config.eos_token_id = list(setting.end_ids)
    arguments = GRPOConfig(
        str(folder), use_cpu=True, bf16=False, gradient_checkpointing=False, max_steps=steps, seed=0,
        # one optimiser step per batch, on policy
        per_device_train_batch_size=rows, gradient_accumulation_steps=QUESTIONS * GROUP // rows, num_iterations=1,
        num_generations=GROUP, shuffle_dataset=False, max_completion_length=setting.most_tokens,
        generation_kwargs={"max_new_tokens": task.max_turn_tokens}, max_tool_calling_iterations=task.max_turns - 1,
        temperature=training.temperature, top_k=0, top_p=1.0,
        # Eq. 3 and 4: a mean over each episode's tokens, then over episodes; z-scores of the group
        loss_type="grpo", scale_rewards="group", epsilon=training.clip_epsilon,
        beta=beta, use_bias_correction_kl=False,  # the plain k3 estimate
        learning_rate=training.learning_rate, lr_scheduler_type="constant", weight_decay=0.0,
        adam_beta1=training.adam_beta1, adam_beta2=training.adam_beta2, max_grad_norm=training.max_grad_norm,
        report_to=[], logging_strategy="no", save_strategy="no", disable_tqdm=True)
    return TimedTrainer(model, args=arguments, processing_class=setting.tokenizer,
                        train_dataset=Dataset.from_list([{"prompt": one} for one in setting.prompts]), **interface)


# The same loss -------------------------------------------------------------------------------------


def same_update(case: Case, config: RunConfig, paths: RunPaths) -> list[Measured]:
    """Loss and gradient of one batch in both; the old log-probabilities are changed so that ratios are clipped.

    Raises:
        ValueError: they differ by more than rounding.
    """
    setting = Setting.of(case, config, paths, kl_coefficient=BETA, max_grad_norm=1e9)
    training, learner = setting.config.training, setting.learner()
    runner, estimator = setting.runner(learner), make_estimator(GRPO, training)
    branching = branching_of(setting.config.algorithm.rollout, case.turns, training)
    groups = runner.play(setting.questions, branching, temperature=training.temperature,
                         seed_of=lambda question, path: derive_seed("same", question, *path))
    scored = runner.score(setting.questions, groups, branching)
    rows = rows_of(groups)
    batch = Batch.of(rows)
    noise_N = torch.randn(len(batch.old_logprob_N), generator=torch.Generator().manual_seed(0))
    batch = replace(batch, old_logprob_N=batch.old_logprob_N + 0.3 * noise_N)
    credit = estimator.credit(groups, [[episode.rewards for episode in leaves] for leaves in scored], rows,
                              old_logprob_N=batch.old_logprob_N)
    ours = learner.update(batch, credit, step=0, seed=0, kl_in_loss=True, old_value_M=None,
                          reference_logprob_N=reference(batch.old_logprob_N))

    def rollout(prompts: Sequence[Any], trainer: Any) -> dict[str, list]:
        places = [len(row.transcript.prompt_ids) for row in rows]
        old = iter(torch.split(batch.old_logprob_N, [sum(row.loss_mask) for row in rows]))
        logprobs = []
        for row, values in zip(rows, map(Tensor.tolist, old), strict=True):
            each = iter(values)
            logprobs.append([next(each) if sampled else 0.0 for sampled in row.loss_mask])
        return {"prompt_ids": [list(row.transcript.prompt_ids) for row in rows],
                "completion_ids": [row.transcript.ids[p:] for row, p in zip(rows, places, strict=True)],
                "env_mask": [row.loss_mask[p:].astype(int).tolist() for row, p in zip(rows, places, strict=True)],
                "logprobs": [values[p:] for values, p in zip(logprobs, places, strict=True)],
                "outcome": [episode.rewards.outcome for leaves in scored for episode in leaves]}

    def given(outcome: list[float], **_: Any) -> list[float]:
        return outcome

    with TemporaryDirectory() as folder:
        trainer = make_trainer(setting, Path(folder), 1, rows=len(rows), beta=BETA, reward_funcs=given,
                               rollout_func=rollout)
        trainer.train()
    old_B_T = trainer.batch["sampling_per_token_logps"]
    moved = trainer.batch | {"old_per_token_logps": old_B_T, "ref_per_token_logps": reference(old_B_T)}
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, moved)
    loss.backward()
    gradients = [gradient_of(model) for model in (learner.policy, trainer.model)]
    difference = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    if not (abs(ours["policy_loss"] - loss.item()) <= LOSS_TOLERANCE and difference <= GRADIENT_TOLERANCE):
        raise ValueError(f"{case.name}: losses {ours['policy_loss']} and {loss.item()}, gradients differ by "
                         f"{difference} of their norm, so the two steps must not be compared")
    part = f"loss of one batch here and in TRL {trl.__version__} (beta {BETA}, off policy)"
    return [Measured(part, case.name, measure, value) for measure, value in (
        ("loss", ours["policy_loss"]), ("TRL's loss", loss.item()), ("% clipped", 100 * ours["clip_fraction"]),
        ("gradients' relative difference", difference))]


def reference(old: Tensor) -> Tensor:
    """Made-up reference log-probabilities, a function of the sampler's, so that the order of rows does not matter."""
    return 1.05 * old


def gradient_of(model: Any) -> Tensor:
    """All gradients as one vector, ordered by parameter name."""
    return torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters()) if p.grad is not None])


# The same step, timed ------------------------------------------------------------------------------


def both_step(case: Case, config: RunConfig, paths: RunPaths, pairs: int) -> list[Measured]:
    """Alternate the steps of both: milliseconds per sampled token, and TRL's divided by ours.

    Raises:
        ValueError: TRL plays other episodes than we do.
    """
    setting = Setting.of(case, config, paths)
    ours = OurSteps(setting)
    spent: list[tuple[StepCost, StepCost]] = []

    def between(seconds: float) -> None:
        theirs = StepCost(trainer.sampling_s, seconds - trainer.sampling_s, trainer.tokens)
        spent.append((ours.step(), theirs))

    def score(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [even_share(ids) for ids in completion_ids]

    def search(query: str) -> str:
        """Search.

        Args:
            query: what to look for.

        Returns:
            passages.
        """
        return observation

    observation = setting.observation
    interface: dict[str, Any] = {"reward_funcs": score, "callbacks": [AfterEachStep(between)]}
    if case.turns > 1:
        interface["tools"] = [search]
        parse_every_turn_as_a_search(setting.tokenizer)
    with TemporaryDirectory() as folder:
        trainer = make_trainer(setting, Path(folder), WARM_UP + pairs, rows=ROWS, **interface)
        trainer.train()
    check_episodes(setting, trainer)
    return list(in_numbers(case.name, spent[WARM_UP:]))


def parse_every_turn_as_a_search(tokenizer: Any) -> None:
    """Make TRL parse every turn as a search, as our task does, so that all episodes reach the turn limit."""
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = {}
    tokenizer.parse_response = lambda ids, **_: {"role": "assistant", "content": "", "tool_calls": [CALL]}


def check_episodes(setting: Setting, trainer: TimedTrainer) -> None:
    """Raise if the prompts or observations of TRL's episodes differ from ours by a token."""
    codec = setting.codec
    prompts = list(map(codec.encode_prompt, setting.prompts))
    shown = list(codec.encode_observation(setting.observation)) * (setting.case.turns - 1)
    masks = trainer.masks or [[1] * len(ids) for ids in trainer.completions]
    for ids, mask in zip(trainer.completions, masks, strict=True):
        if [i for i, sampled in zip(ids, mask, strict=True) if not sampled] != shown:
            raise ValueError(f"{setting.case.name}: TRL's observations differ from ours: {codec.decode(ids)!r}")
    if [tuple(ids) for ids in trainer.prompts] != [ids for ids in prompts for _ in range(GROUP)]:
        raise ValueError(f"{setting.case.name}: TRL's prompts differ from ours: "
                         f"{codec.decode(trainer.prompts[0])!r}")


def in_numbers(name: str, spent: Sequence[tuple[StepCost, StepCost]]) -> Iterator[Measured]:
    """Medians over pairs of steps, ours and TRL's."""
    part = (f"GRPO step compared with TRL {trl.__version__}, {QUESTIONS} questions x {GROUP}: ms per sampled token, "
            f"and TRL's divided by ours (medians of {len(spent)} pairs)")
    kinds: dict[str, Callable[[StepCost], float]] = {
        "sampling": lambda one: one.sampling_s, "update": lambda one: one.update_s,
        "both": lambda one: one.sampling_s + one.update_s}
    for kind, seconds in kinds.items():
        subject, each = f"{name}: {kind}", [[1e3 * seconds(one) / one.tokens for one in pair] for pair in spent]
        for side, whose in enumerate(("", "TRL's ")):
            yield with_spread(part, subject, f"{whose}tokens", [float(pair[side].tokens) for pair in spent])[0]
            yield with_spread(part, subject, f"{whose}ms", [pair[side] for pair in each])[0]
        yield from with_spread(part, subject, "x", [theirs / ours for ours, theirs in each])


def compare_with_trl(root: Path, scale: str, pairs: int) -> Iterator[Measured]:
    """Check that both compute the same, then time both."""
    config, paths = comparison_run(root, scale)
    kinds = cases(config.task.max_turns)
    for case in kinds:
        yield from same_update(case, config, paths)
    for case in kinds:
        yield from both_step(case, config, paths, pairs)


if __name__ == "__main__":
    run_as_peer(compare_with_trl)
