"""A GRPO step beside TRL's GRPOTrainer: a program for the environment that holds TRL.

Both train the same policy on the same prompts in this process and take their steps by turns. TRL
goes through its own training loop; several turns go through its tool calls. That both compute the
same is asserted first, on one batch of ours that TRL takes as the result of a rollout function.
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

from bench.cases import GROUP, GRPO, QUESTIONS, Case, Ours, Setting, Spent, beside, cases, even_share
from bench.peers import answer
from bench.results import Measured, with_spread
from turncredit.config.load import RunConfig
from turncredit.credit.base import make_estimator
from turncredit.credit.rows import rows_of
from turncredit.policy.model import load_policy
from turncredit.rollout.branching import branching_of
from turncredit.seeding import digest
from turncredit.training.batch import Batch
from turncredit.training.run_folder import RunPaths

WARM_UP = 1
ROWS = 4  # of one of TRL's forward passes: where it was fastest, of 4, 8, 16 and 64
BETA = 0.04  # of the KL term, where losses are compared
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4  # absolute (losses are of the size of 1), and relative
# Tokens as ours: what the policy says ends with its own tag, and a tool's message stands inside its turn. TRL
# cuts the tool's tokens off behind the assistant's last end token.
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
    """TRL's trainer, which notes what its sampling took and made, and the last batch that it trained on."""

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
        """Sampled in the last step."""
        return sum(map(len, self.completions)) if self.masks is None else sum(map(sum, self.masks))


class AfterEachStep(TrainerCallback):
    """Says how long each of TRL's steps took, between two of them."""

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
    """TRL's trainer with the settings that make its step ours.

    Args:
        setting: policy, prompts and sizes.
        folder: for what TRL may write; it is asked for nothing.
        steps: to train.
        rows: of one forward pass; gradients of several are accumulated.
        beta: weight of the KL term.
        interface: reward functions, tools or a rollout function.
    """
    task, training = setting.config.task, setting.config.training
    model = load_policy(setting.policy, "cpu")
    model.generation_config.eos_token_id = list(setting.end_ids)
    arguments = GRPOConfig(
        str(folder), use_cpu=True, bf16=False, gradient_checkpointing=False, max_steps=steps, seed=0,
        # one optimiser step a batch, on policy
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
    """Loss and gradient of one batch, by both; old log-probabilities are moved so that the clip acts.

    Raises:
        ValueError: they differ by more than rounding.
    """
    setting = Setting.of(case, config, paths, kl_coefficient=BETA, max_grad_norm=1e9)
    training, learner = setting.config.training, setting.learner()
    runner, estimator = setting.runner(learner), make_estimator(GRPO, training)
    branching = branching_of(setting.config.algorithm.rollout, case.turns, training)
    groups = runner.play(setting.questions, branching, temperature=training.temperature,
                         seed_of=lambda question, path: digest("same", question, *path))
    scored = runner.score(setting.questions, groups, branching)
    rows = rows_of(groups)
    batch = Batch.of(rows)
    noise_N = torch.randn(len(batch.old_logprob_N), generator=torch.Generator().manual_seed(0))
    batch = replace(batch, old_logprob_N=batch.old_logprob_N + 0.3 * noise_N)
    credit = estimator.credit(groups, [[episode.rewards for episode in leaves] for leaves in scored], rows,
                              old_logprob_N=batch.old_logprob_N)
    ours = learner.update(batch, credit, step=0, seed=0, kl_in_loss=True, old_value_N=None,
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
                         f"{difference} of their norm: what is timed is not the same computation")
    part = f"one batch, its loss here and in TRL {trl.__version__} (beta {BETA}, off policy)"
    return [Measured(part, case.name, measure, value) for measure, value in (
        ("loss", ours["policy_loss"]), ("TRL's loss", loss.item()), ("% clipped", 100 * ours["clip_fraction"]),
        ("gradients' relative difference", difference))]


def reference(old: Tensor) -> Tensor:
    """Made-up log-probabilities of a reference, as a function of the sampler's, so that any order of rows will do."""
    return 1.05 * old


def gradient_of(model: Any) -> Tensor:
    """All gradients as one vector, in the order of names."""
    return torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters()) if p.grad is not None])


# The same step, timed ------------------------------------------------------------------------------


def both_step(case: Case, config: RunConfig, paths: RunPaths, pairs: int) -> list[Measured]:
    """Steps of both by turns: milliseconds for each sampled token, and how many times ours TRL takes.

    Raises:
        ValueError: TRL's episodes are not those that we play.
    """
    setting = Setting.of(case, config, paths)
    ours = Ours(setting)
    spent: list[tuple[Spent, Spent]] = []

    def between(seconds: float) -> None:
        theirs = Spent(trainer.sampling_s, seconds - trainer.sampling_s, trainer.tokens)
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
        hear_a_search_in_every_turn(setting.tokenizer)
    with TemporaryDirectory() as folder:
        trainer = make_trainer(setting, Path(folder), WARM_UP + pairs, rows=ROWS, **interface)
        trainer.train()
    check_episodes(setting, trainer)
    return list(in_numbers(case.name, spent[WARM_UP:]))


def hear_a_search_in_every_turn(tokenizer: Any) -> None:
    """Have TRL read every turn as a search, as our task does: all episodes go to the turn limit."""
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = {}
    tokenizer.parse_response = lambda ids, **_: {"role": "assistant", "content": "", "tool_calls": [CALL]}


def check_episodes(setting: Setting, trainer: TimedTrainer) -> None:
    """Refuse episodes of TRL whose prompts or observations are not ours, token by token."""
    codec = setting.codec
    prompts = list(map(codec.encode_prompt, setting.prompts))
    shown = list(codec.encode_observation(setting.observation)) * (setting.case.turns - 1)
    masks = trainer.masks or [[1] * len(ids) for ids in trainer.completions]
    for ids, mask in zip(trainer.completions, masks, strict=True):
        if [i for i, sampled in zip(ids, mask, strict=True) if not sampled] != shown:
            raise ValueError(f"{setting.case.name}: TRL shows {codec.decode(ids)!r}")
    if [tuple(ids) for ids in trainer.prompts] != [ids for ids in prompts for _ in range(GROUP)]:
        raise ValueError(f"{setting.case.name}: TRL's prompts are {codec.decode(trainer.prompts[0])!r} and so on")


def in_numbers(name: str, spent: Sequence[tuple[Spent, Spent]]) -> Iterator[Measured]:
    """Medians of pairs of steps, ours and TRL's."""
    part = (f"a GRPO step beside TRL {trl.__version__}'s, {QUESTIONS} questions x {GROUP}: ms a sampled token, "
            f"and TRL's times ours (medians of {len(spent)} pairs)")
    kinds: dict[str, Callable[[Spent], float]] = {
        "sampling": lambda one: one.sampling_s, "update": lambda one: one.update_s,
        "both": lambda one: one.sampling_s + one.update_s}
    for kind, seconds in kinds.items():
        subject, each = f"{name}: {kind}", [[1e3 * seconds(one) / one.tokens for one in pair] for pair in spent]
        for side, whose in enumerate(("", "TRL's ")):
            yield with_spread(part, subject, f"{whose}tokens", [float(pair[side].tokens) for pair in spent])[0]
            yield with_spread(part, subject, f"{whose}ms", [pair[side] for pair in each])[0]
        yield from with_spread(part, subject, "x", [theirs / ours for ours, theirs in each])


def beside_trl(root: Path, scale: str, pairs: int) -> Iterator[Measured]:
    """The whole comparison."""
    config, paths = beside(root, scale)
    kinds = cases(config.task.max_turns)
    for case in kinds:
        yield from same_update(case, config, paths)
    for case in kinds:
        yield from both_step(case, config, paths, pairs)


if __name__ == "__main__":
    answer(beside_trl)
