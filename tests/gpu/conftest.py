"""vLLM on a tiny policy: each engine is started once and gets other weights by vLLM's own means.

On its CPU build; with TURNCREDIT_TEST_DEVICE=cuda on a GPU, where it sleeps before each weight update too.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from tests.policies import codec, foreign_codec
from turncredit.config.load import PolicyConfig
from turncredit.config.runtime import EngineConfig
from turncredit.policy.engines.base import Engine
from turncredit.policy.engines.make import make_engine
from turncredit.policy.model import make_tiny_policy, save_policy
from turncredit.policy.tokenizer import Codec

WINDOW = 256
DEVICE = os.environ.get("TURNCREDIT_TEST_DEVICE", "cpu")
# torchrun's, as a process of a distributed run has them; vLLM's processes must not meet at this address
OF_TORCHRUN = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2",
               "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is None:
        reason = "vLLM is not installed here: make test-vllm makes an environment with its CPU build"
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Place:
    """A running vLLM.

    Attributes:
        engine: it.
        codec: of its policy.
        policy: the folder that it started with.
        version: of the weights last given.
    """

    engine: Engine
    codec: Codec
    policy: Path
    version: int = 0

    def holds(self, model: PreTrainedModel) -> Engine:
        """The engine, with the weights of ``model``."""
        self.version += 1
        self.engine.sleep()
        self.engine.update_weights(model.state_dict().items(), self.version)
        return self.engine


@pytest.fixture(scope="session", params=["process", "process-foreign", "server"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One of each kind, for all tests."""
    with started(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@contextmanager
def started(kind: str, root: Path) -> Iterator[Place]:
    """vLLM in child processes or as a server; foreign: tags span several tokens, as in a hub model."""
    c = foreign_codec() if kind.endswith("foreign") else codec()
    policy = root / "policy"
    save_policy(policy_model(c), policy, c.tokenizer)
    # what a hub model brings along, and a rollout must not follow
    GenerationConfig(do_sample=True, top_k=1, top_p=0.5, temperature=0.1, repetition_penalty=3.0,
                     eos_token_id=7, bos_token_id=None).save_pretrained(policy)
    serves = kind == "server"  # on the first GPU: there are no trainers
    config = EngineConfig(kind="vllm", mode="server" if serves else "colocate", max_sequences=64)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in OF_TORCHRUN.items():
            patch.setenv(name, value)
        with make_engine(config, c, policy=policy, model=lambda: policy_model(c), window=WINDOW, device=DEVICE,
                         precision="float32", folder=root, local_world_size=0 if serves else 1) as engine:
            for name in OF_TORCHRUN:
                patch.delenv(name)
            yield Place(engine, c, policy)


def policy_model(c: Codec, seed: int = 0) -> PreTrainedModel:
    """A random policy of ``script_model``'s sizes, far from flat: vLLM can change from one to the other.

    Its CPU build needs a head dimension of 32, and keeps the old head of a tied policy.
    """
    sizes = PolicyConfig(hidden_size=64, layers=1, heads=2, kv_heads=2, intermediate_size=8)
    made = make_tiny_policy(sizes, len(c.tokenizer), seed, tied=False)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    return made
