"""The training corpus, and the torch model against transformers (extra [reference])."""

import hashlib
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from fidelity.refserver.training import tokenizer as own_tokenizer
from fidelity.refserver.training.corpus import Corpus, filler_text, load_bank, numbers_in
from fidelity.refserver.weights import PROFILES


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(PROFILES / "tokenizer.json"))


def test_the_shipped_tokenizer_is_what_its_script_makes(tmp_path: Path) -> None:
    made = tmp_path / "tokenizer.json"
    own_tokenizer.train(load_bank()).save(str(made))
    shipped = (PROFILES / "tokenizer.json").read_bytes()
    assert hashlib.sha256(made.read_bytes()).hexdigest() == hashlib.sha256(shipped).hexdigest()


@pytest.mark.parametrize("tokens", [0, 1, 2, 15, 16, 17, 300, 900])
def test_numbers_fill_the_room_and_no_more(tokenizer: Tokenizer, tokens: int) -> None:
    def size(n: int) -> int:
        return len(tokenizer.encode(filler_text(n, 0, "")).ids) - 1

    n = numbers_in(tokens)
    assert size(n) <= tokens < size(n + 1)


@pytest.mark.parametrize("single", [True, False])
def test_samples_repeat_with_the_seed_and_keep_the_limit(tokenizer: Tokenizer, single: bool) -> None:
    first, again = (Corpus(load_bank(), tokenizer, seed=3) for _ in range(2))
    for _ in range(30):
        sample = first.sample(320, single)
        assert sample == again.sample(320, single)
        assert len(sample.ids) == len(sample.weight) <= 320
        learnt = [i for i, weight in zip(sample.ids, sample.weight, strict=True) if weight]
        assert learnt[-1] == tokenizer.token_to_id("<|im_end|>")
        assert tokenizer.token_to_id("<|im_start|>") not in learnt


@pytest.mark.reference
@pytest.mark.parametrize(("key_heads", "value_heads", "size"), [(1, 2, 128), (2, 4, 32)])
def test_torch_model_equals_transformers(key_heads: int, value_heads: int, size: int) -> None:
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    from fidelity.refserver.training.model_torch import QuizModel, Shape
    from fidelity.refserver.training.train import RECIPES, initialise

    torch.manual_seed(1)
    shape = Shape(
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=size,
        linear_value_head_dim=size,
    )
    own = QuizModel(shape)
    initialise(own, RECIPES["quiz-state"])
    for parameter in own.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    own.embed_tokens.weight.data *= 20  # logits of a trained model's size
    rope = {"rope_type": "default", "rope_theta": shape.rope_theta, "partial_rotary_factor": 0.25}
    theirs = Qwen3NextForCausalLM(
        Qwen3NextConfig(**shape.config(), rope_parameters=rope, decoder_sparse_step=1)
    ).eval()
    tensors = own.tensors()
    state = {}
    for name in theirs.state_dict():
        at = name.rsplit(".", 1)[0]
        experts = [f"{at}.{e}" for e in range(shape.num_experts)]
        if name.endswith("experts.gate_up_proj"):
            pairs = [(tensors[f"{e}.gate_proj.weight"], tensors[f"{e}.up_proj.weight"]) for e in experts]
            state[name] = torch.stack([torch.cat(pair) for pair in pairs])
        elif name.endswith("experts.down_proj"):
            state[name] = torch.stack([tensors[f"{e}.down_proj.weight"] for e in experts])
        else:
            state[name] = tensors[name]
    theirs.load_state_dict(state)
    ids = torch.randint(0, shape.vocab_size, (2, 192))
    with torch.no_grad():
        difference = own.logits(own(ids)) - theirs(input_ids=ids).logits
    assert float(difference.abs().max()) < 1e-3
