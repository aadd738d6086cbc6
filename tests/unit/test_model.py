"""Log-probabilities and values belong to loss tokens: padding, masks and saving move nothing."""

import pytest
import torch
from torch import Tensor
from transformers import CohereConfig, CohereForCausalLM

from tests.policies import model, tokenizer
from tests.tolerance import assert_close, error_ratio, longest_sum, sensitivity
from turncredit.config.data import PolicyConfig
from turncredit.errors import CheckpointError, ConfigError
from turncredit.policy.model import (
    Critic,
    head_logits,
    load_policy,
    make_tiny_policy,
    save_policy,
    token_logprobs,
    token_values,
)
from turncredit.policy.tokenizer import Codec

KINDS = ("qwen2", "qwen2-grouped", "llama", "gpt2")
pytestmark = pytest.mark.numeric


def rows(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two rows of 12 tokens: prompt 4, turn 3, observation 3, turn 2."""
    ids_B_T = torch.randint(5, 400, (2, 12), generator=torch.Generator().manual_seed(seed))
    loss_mask_B_T = torch.tensor([[0] * 4 + [1] * 3 + [0] * 3 + [1] * 2] * 2)
    return ids_B_T, torch.ones_like(ids_B_T), loss_mask_B_T


def padded(left: int, right: int) -> tuple[Tensor, Tensor, Tensor]:
    ids_B_T, attention_B_T, loss_mask_B_T = rows()
    return (torch.nn.functional.pad(ids_B_T, (left, right), value=3),
            torch.nn.functional.pad(attention_B_T, (left, right)),
            torch.nn.functional.pad(loss_mask_B_T, (left, right)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_entry_of_a_token_is_its_probability_given_what_stands_before(kind):
    policy = model(kind)
    ids_B_T, attention_B_T, loss_mask_B_T = rows()

    def compute() -> tuple[Tensor, Tensor]:
        return token_logprobs(policy, ids_B_T, attention_B_T, loss_mask_B_T, 0.7)

    expected = []
    for ids, mask in zip(ids_B_T, loss_mask_B_T, strict=True):
        for t in mask.nonzero().flatten().tolist():
            log_p_V = (policy(ids[None, :t]).logits[0, -1] / 0.7).log_softmax(-1)
            expected.append((log_p_V[ids[t]].item(), -(log_p_V.exp() * log_p_V).sum().item()))
    (logprob_N, entropy_N), (of_logprob, of_entropy) = compute(), sensitivity(compute, policy.parameters())
    by_hand, entropy = zip(*expected, strict=True)
    assert_close(logprob_N, by_hand, terms=longest_sum(policy, ids_B_T.shape[1]), scale=of_logprob)
    assert_close(entropy_N, entropy, terms=policy.config.vocab_size, scale=of_entropy + max(entropy))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("left", "right"), [(0, 1), (1, 0), (7, 0), (0, 7), (7, 7)])
def test_padding_on_either_side_moves_no_logprob_no_value_and_no_gradient(kind, left, right):
    policy = model(kind)
    critic = Critic(policy)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(1))

    def compute(batch: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        logprob_N, _ = token_logprobs(policy, *batch, 1.0)
        gradients = torch.autograd.grad(logprob_N.sum(), list(policy.parameters()))
        return [logprob_N, token_values(critic, *batch), *gradients]

    scales = sensitivity(lambda: compute(rows()), [*policy.parameters(), *critic.parameters()])
    terms = longest_sum(policy, rows()[0].numel(), policy.config.vocab_size)  # the backward pass sums over these too
    for plain, with_pads, scale in zip(compute(rows()), compute(padded(left, right)), scales, strict=True):
        assert_close(with_pads, plain, terms=terms, scale=scale)


def test_observation_tokens_get_no_gradient_and_yet_are_seen():
    policy = model()
    ids_B_T, attention_B_T, loss_mask_B_T = rows()
    logits_B_T_V = policy(ids_B_T).logits.detach().requires_grad_()

    class Fixed(torch.nn.Module):  # the logits as if they were hidden states: their gradient can be read
        def forward(self, **_: object) -> object:
            return type("Output", (), {"last_hidden_state": logits_B_T_V})

    frozen = type("Frozen", (), {"base_model": Fixed(), "config": policy.config,
                                 "get_output_embeddings": lambda self: torch.nn.Identity()})()
    token_logprobs(frozen, ids_B_T, attention_B_T, loss_mask_B_T, 1.0)[0].sum().backward()
    touched_B_T = logits_B_T_V.grad.abs().sum(-1) > 0
    assert torch.equal(touched_B_T[:, :-1], loss_mask_B_T[:, 1:].bool())
    assert not touched_B_T[:, -1].any()

    def compute(ids_B_T: Tensor) -> list[Tensor]:
        return [token_logprobs(policy, ids_B_T, attention_B_T, loss_mask_B_T, 1.0)[0].view(2, 5)]

    [before_B_N], [scale] = compute(ids_B_T), sensitivity(lambda: compute(ids_B_T), policy.parameters())
    other_B_T = ids_B_T.clone()
    other_B_T[:, 7:10] = torch.tensor([11, 12, 13])  # another passage
    [after_B_N] = compute(other_B_T)
    terms = longest_sum(policy, ids_B_T.shape[1])
    assert_close(before_B_N[:, :3], after_B_N[:, :3], terms=terms, scale=scale)  # the turn before it
    for before, after in zip(before_B_N[:, 3:].flatten(), after_B_N[:, 3:].flatten(), strict=True):
        assert error_ratio(before, after, terms=terms, scale=scale) > 100  # the turn after it


def test_the_value_of_a_token_is_predicted_before_the_token_is_there():
    critic = Critic(model())
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(1))
    ids_B_T, attention_B_T, _ = rows()
    values_B_T = critic(ids_B_T, attention_B_T)
    hidden = critic.backbone(ids_B_T).last_hidden_state
    [scale] = sensitivity(lambda: [critic(ids_B_T, attention_B_T)[:, :6]], critic.parameters())
    rounding = {"terms": longest_sum(critic, ids_B_T.shape[1]), "scale": scale}
    assert_close(values_B_T[:, 5], critic.head(hidden[:, 4]).squeeze(-1), **rounding)
    changed_B_T = ids_B_T.clone()
    changed_B_T[:, 5] = 9
    again_B_T = critic(changed_B_T, attention_B_T)
    assert_close(values_B_T[:, :6], again_B_T[:, :6], **rounding)
    assert (values_B_T[:, 6:] != again_B_T[:, 6:]).all()


def test_a_fresh_critic_says_zero_and_shares_no_weight_with_the_policy():
    policy = model()
    critic = Critic(policy)
    assert not token_values(critic, *rows()).any()
    own = {p.data_ptr() for p in critic.parameters()}
    assert not own & {p.data_ptr() for p in policy.parameters()}


def test_entropy_has_a_gradient_only_if_asked():
    policy = model()
    assert not token_logprobs(policy, *rows(), 1.0)[1].requires_grad
    token_logprobs(policy, *rows(), 1.0, entropy_gradient=True)[1].sum().backward()
    assert all(p.grad.isfinite().all() for p in policy.parameters())


def test_a_first_token_has_no_probability():
    ids_B_T, attention_B_T, loss_mask_B_T = rows()
    with pytest.raises(ValueError, match="first token"):
        token_logprobs(model(), ids_B_T, attention_B_T, torch.ones_like(loss_mask_B_T), 1.0)


def test_a_model_that_caps_its_logits_is_refused():
    policy = model()
    policy.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match="caps"):
        head_logits(policy, torch.zeros(1, 32))


def test_a_model_that_scales_its_logits_is_refused_when_loaded(tmp_path):
    config = CohereConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                          num_attention_heads=2, logit_scale=0.25, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    CohereForCausalLM(config).save_pretrained(tmp_path / "scaled")
    with pytest.raises(CheckpointError, match="CohereForCausalLM changes the output of its head"):
        load_policy(tmp_path / "scaled")


def test_weights_come_from_the_seed_and_leave_the_global_generator_alone():
    config = PolicyConfig(hidden_size=24, layers=1, heads=3, kv_heads=3, intermediate_size=8)
    state = torch.get_rng_state()
    one, same, other = (make_tiny_policy(config, 300, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [m.get_input_embeddings().weight for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    with pytest.raises(ConfigError, match="must divide"):
        make_tiny_policy(config.model_copy(update={"heads": 5}), 300, 0)


def test_a_saved_policy_is_the_same_when_loaded_also_over_an_older_one(tmp_path):
    folder = tmp_path / "policy"
    save_policy(model(seed=1), folder, tokenizer())
    save_policy(model(seed=0), folder, tokenizer())
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    loaded = load_policy(folder)
    assert torch.equal(token_logprobs(loaded, *rows(), 1.0)[0], token_logprobs(model(seed=0), *rows(), 1.0)[0])
    assert Codec.load(folder).pad_id == tokenizer().pad_token_id


@pytest.mark.parametrize("damage", ["absent", "config", "weights", "cut", "lacking"])
def test_a_damaged_folder_is_a_checkpoint_error(tmp_path, damage):
    folder = tmp_path / "policy"
    if damage != "absent":
        save_policy(model(), folder)
    weights = folder / "model.safetensors"
    if damage == "config":
        (folder / "config.json").write_text("{")
    elif damage == "weights":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "lacking":
        from safetensors.torch import load_file, save_file
        kept = {k: v for k, v in load_file(weights).items() if "layers.1.mlp" not in k}
        save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=str(folder)):
        load_policy(folder)
