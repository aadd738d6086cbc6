"""Log-probabilities and values belong to loss tokens: padding, masks and saving move nothing."""

import pytest
import torch
from torch import Tensor

from tests.policies import model, tokenizer
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
    logprob_N, entropy_N = token_logprobs(policy, ids_B_T, attention_B_T, loss_mask_B_T, 0.7)
    expected = []
    for ids, mask in zip(ids_B_T, loss_mask_B_T, strict=True):
        for t in mask.nonzero().flatten().tolist():
            log_p_V = (policy(ids[None, :t]).logits[0, -1] / 0.7).log_softmax(-1)
            expected.append((log_p_V[ids[t]].item(), -(log_p_V.exp() * log_p_V).sum().item()))
    assert torch.allclose(torch.stack([logprob_N, entropy_N], -1), torch.tensor(expected), atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("left", "right"), [(0, 1), (1, 0), (7, 0), (0, 7), (7, 7)])
def test_padding_on_either_side_moves_no_logprob_no_value_and_no_gradient(kind, left, right):
    policy = model(kind)
    critic = Critic(policy)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(1))
    found = []
    for batch in (rows(), padded(left, right)):
        policy.zero_grad()
        logprob_N, _ = token_logprobs(policy, *batch, 1.0)
        logprob_N.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
        found.append((logprob_N.detach(), token_values(critic, *batch).detach(), gradient))
    for plain, with_pads in zip(*found, strict=True):
        assert torch.allclose(plain, with_pads, atol=2e-5, rtol=1e-4)


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

    before_N, _ = token_logprobs(policy, ids_B_T, attention_B_T, loss_mask_B_T, 1.0)
    other_B_T = ids_B_T.clone()
    other_B_T[:, 7:10] = torch.tensor([11, 12, 13])  # another passage
    after_N, _ = token_logprobs(policy, other_B_T, attention_B_T, loss_mask_B_T, 1.0)
    moved_B_N = ((before_N - after_N).abs() > 1e-6).view(2, 5)
    assert not moved_B_N[:, :3].any()  # the turn before it
    assert moved_B_N[:, 3:].all()  # the turn after it


def test_the_value_of_a_token_is_predicted_before_the_token_is_there():
    critic = Critic(model())
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(1))
    ids_B_T, attention_B_T, _ = rows()
    values_B_T = critic(ids_B_T, attention_B_T)
    hidden = critic.backbone(ids_B_T).last_hidden_state
    assert torch.allclose(values_B_T[:, 5], critic.head(hidden[:, 4]).squeeze(-1), atol=1e-5)
    changed_B_T = ids_B_T.clone()
    changed_B_T[:, 5] = 9
    again_B_T = critic(changed_B_T, attention_B_T)
    assert torch.allclose(values_B_T[:, :6], again_B_T[:, :6], atol=1e-6)
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
