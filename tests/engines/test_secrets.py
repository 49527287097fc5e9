import pytest

from fidelity.engines.secrets import hide, scrub, secrets_in


def test_every_value_of_ones_own_headers_is_a_secret_longest_first() -> None:
    found = secrets_in([("Authorization", "Bearer sk-live-12345"), ("X-Tenant", "acme-corp"), ("X-N", "7")])
    assert found == ("Bearer sk-live-12345", "sk-live-12345", "acme-corp")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("wrong key sk-live-12345!", "wrong key (hidden)!"),
        ('{"key":"sk-live-12345"}', '{"key":"(hidden)"}'),
        ("Bearer sk-live-12345", "(hidden)"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_they_are_hidden_wherever_they_stand(text: str, shown: str) -> None:
    assert hide(text, secrets_in([("authorization", "Bearer sk-live-12345")])) == shown


def test_a_key_of_digits_does_not_eat_a_logprob() -> None:
    assert hide("-0.1234567890, 1234567890, x", ["1234567890"]) == "-0.1234567890, (hidden), x"


def test_what_is_no_key_is_left() -> None:
    kept = {"max_total_num_tokens": 5, "tokenizer_path": "t", "api_key": None}
    assert scrub(kept) == kept
