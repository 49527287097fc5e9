"""Token texts and bytes of a tokenizer whose special tokens are not ASCII."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fidelity.refserver.text import Text


def test_a_special_token_stands_for_its_own_text(tmp_path: Path) -> None:
    alphabet = {piece: index for index, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True), AddedToken("<末尾>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = Text(tmp_path / "tokenizer.json")
    assert text.eos == {256}
    assert bytes(text.token_bytes(257)).decode() == text.token(257) == "<末尾>"
    assert [bytes(text.token_bytes(token)) for token in text.encode("é")] == [b"\xc3", b"\xa9"]
    assert text.token(text.encode("é")[0]) == "�"


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no tokenizer at"):
        Text(tmp_path / "tokenizer.json")
