import jinja2
import pytest

from fidelity.refserver.chat import TEMPLATE, render

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  1 + 1?\n"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "{{ braces }} <b>"},
]


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("thinking", [True, False, None])
def test_the_function_renders_what_the_template_does(opening: bool, thinking: bool | None) -> None:
    given = {} if thinking is None else {"enable_thinking": thinking}
    expected = jinja2.Template(TEMPLATE).render(messages=MESSAGES, add_generation_prompt=opening, **given)
    assert render(MESSAGES, enable_thinking=thinking, add_generation_prompt=opening) == expected


def test_the_text() -> None:
    text = render(MESSAGES[:1] + MESSAGES[3:], enable_thinking=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{{ braces }} <b><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert render(MESSAGES[:1]).endswith("<|im_start|>assistant\n<think>\n")
