"""The chat template: in Jinja for the exported tokenizer, and as the function the server runs."""

from collections.abc import Mapping, Sequence

TEMPLATE = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}\
{%- else -%}{{- '<think>\\n' -}}{%- endif -%}
{%- endif -%}"""


def render(
    messages: Sequence[Mapping[str, str]],
    *,
    enable_thinking: bool | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt text of ``messages`` (role, content), as :data:`TEMPLATE` gives it.

    Only ``enable_thinking=False`` closes the thinking part. Raises KeyError without a role or content.
    """
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    if not add_generation_prompt:
        return text
    thinking = "<think>\n\n</think>\n\n" if enable_thinking is False else "<think>\n"
    return f"{text}<|im_start|>assistant\n{thinking}"
