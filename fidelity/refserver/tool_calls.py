"""Tool calls in a chat answer. The profiles know no marked call: a call is the arguments alone, one JSON
object that names exactly the parameters of the only tool offered."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

PARSER = "only-tool"
"""The name of this rule in `/model_info`; sglang's parsers read the marks of one model family each."""


def tool_calls(text: str, body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The calls that an answer makes, as the OpenAI API lists them; None when it makes none."""
    tool = _only_tool(body)
    if tool is None:
        return None
    try:
        arguments = json.loads(text)
    except ValueError:
        return None
    parameters = tool.get("parameters")
    known = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(arguments, dict) or not isinstance(known, dict) or set(arguments) != set(known):
        return None
    called = {"name": tool.get("name"), "arguments": text.strip()}
    return [{"id": f"call_{uuid.uuid4().hex[:24]}", "index": 0, "type": "function", "function": called}]


def _only_tool(body: Mapping[str, Any]) -> dict[str, Any] | None:
    tools = body.get("tools")
    if body.get("tool_choice") == "none" or not isinstance(tools, list) or len(tools) != 1:
        return None
    function = tools[0].get("function") if isinstance(tools[0], dict) else None
    return function if isinstance(function, dict) else None
