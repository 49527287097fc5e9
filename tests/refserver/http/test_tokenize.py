"""`/tokenize` and `/detokenize`."""

from .conftest import Client


def test_tokenize_and_back(clean: Client) -> None:
    text = "A précis: 12 + 30 = 42, 東京 🙂"
    one = clean.post("/v1/tokenize", {"prompt": text}).json()
    assert one["count"] == len(one["tokens"])
    assert one["max_model_len"] == 8192
    assert clean.post("/detokenize", {"tokens": one["tokens"]}).json() == {"text": text}
    two = clean.post("/tokenize", {"prompt": [text, "b"]}).json()
    assert two["count"] == [one["count"], 1]
    assert clean.post("/detokenize", {"tokens": two["tokens"]}).json() == {"text": [text, "b"]}
    special = {"tokens": [2045], "skip_special_tokens": False}
    assert clean.post("/detokenize", special).json() == {"text": "<|im_end|>"}


def test_chat_content_may_come_in_parts(clean: Client) -> None:
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    whole, split = [
        clean.post("/tokenize", {"messages": [{"role": "user", "content": content}]}).json()
        for content in ("Hello there", parts)
    ]
    assert whole == split


def test_every_token_has_its_bytes(clean: Client) -> None:
    text = clean.service.text
    assert [text.token_bytes(token)[0] for token in range(3)] == [ord("!"), ord('"'), ord("#")]
    assert bytes(text.token_bytes(2045)) == b"<|im_end|>"
    assert sorted(text.token_bytes(token)[0] for token in range(256)) == list(range(256))
