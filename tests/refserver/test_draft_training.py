"""The draft head's training in torch against the NumPy engine's head (extra [train])."""

import numpy as np
import pytest

from fidelity.refserver.draft import DraftHead
from fidelity.refserver.model import Model
from fidelity.refserver.moe import Experts
from fidelity.refserver.random_profile import random_weights
from fidelity.refserver.weights import EMBED, HEAD, Config, Weights


@pytest.fixture(scope="module")
def target() -> tuple[Weights, Model]:
    weights = random_weights(Config(vocab_size=64), seed=2)
    return weights, Model(weights, Experts())


@pytest.mark.reference
def test_the_torch_head_equals_the_engine_s(target: tuple[Weights, Model]) -> None:
    import torch

    from fidelity.refserver.training.draft import TorchHead
    from fidelity.refserver.training.model_torch import Shape

    weights, model = target
    torch.manual_seed(0)
    own = TorchHead(Shape(vocab_size=64))
    for parameter in own.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    hidden = np.random.default_rng(0).standard_normal((9, 128)).astype(np.float32)
    ids = np.arange(9)
    with torch.no_grad():
        state = own(torch.from_numpy(hidden), torch.from_numpy(weights.tensors[EMBED][ids]))
    logits, after = DraftHead(own.tensors(), model).forward(hidden, ids)
    np.testing.assert_allclose(after, state.numpy(), atol=1e-4)
    np.testing.assert_allclose(logits, state.numpy() @ weights.tensors[HEAD].T, atol=1e-3)


@pytest.mark.reference
def test_training_makes_the_head_follow_the_target(target: tuple[Weights, Model]) -> None:
    from fidelity.refserver.training.draft import TorchHead, acceptance, collect, train
    from fidelity.refserver.training.model_torch import Shape

    weights, model = target
    prompts = np.random.default_rng(1).integers(0, 64, (12, 8)).tolist()
    answers = collect(model, prompts, 24, 0.0, seed=0)
    assert [answer.hidden.shape for answer in answers] == [(24, 128)] * 12
    for answer in answers:  # the hidden state kept with a token is the one that chose it
        assert (answer.hidden @ model.head).argmax(axis=1).tolist() == answer.tokens.tolist()
    shape = Shape(vocab_size=64)
    fresh = DraftHead(TorchHead(shape).tensors(), model)
    trained = train(answers, weights.tensors[EMBED], weights.tensors[HEAD], shape, 150, 64, seed=0)
    learnt = DraftHead(trained.tensors(), model)
    assert 1 <= acceptance(fresh, answers) < 1.5
    assert acceptance(learnt, answers) > 2.5
