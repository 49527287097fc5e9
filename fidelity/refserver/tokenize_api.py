"""`/tokenize` and `/detokenize`."""

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from .errors import BadRequestError
from .progress import body_of
from .replies import json_reply, openai_error
from .service import Service


async def tokenize(http: HttpRequest) -> Response:
    """Ids of a `prompt` (a text or a list of texts) or of `messages` through the chat template."""
    service: Service = http.app.state.service
    try:
        body = await body_of(http)
        tokens = _tokens(service, body)
    except BadRequestError as error:
        return openai_error(str(error))
    nested = isinstance(body.get("prompt"), list)
    count: Any = [len(ids) for ids in tokens] if nested else len(tokens)
    reply = {"tokens": tokens, "count": count, "max_model_len": service.settings.context_length}
    return json_reply(reply, "null", native=False)


async def detokenize(http: HttpRequest) -> Response:
    """The text of `tokens`, a list of ids or a list of such lists."""
    service: Service = http.app.state.service
    try:
        body = await body_of(http)
        tokens = body.get("tokens")
        if not isinstance(tokens, list):
            raise BadRequestError("tokens must be a list of integers or a list of such lists.")
        nested = bool(tokens) and isinstance(tokens[0], list)
        skip = body.get("skip_special_tokens", True) is not False
        texts = [_decoded(service, ids, skip) for ids in (tokens if nested else [tokens])]
    except BadRequestError as error:
        return openai_error(str(error))
    return json_reply({"text": texts if nested else texts[0]}, "null", native=False)


def _tokens(service: Service, body: dict[str, Any]) -> list[Any]:
    prompt, messages = body.get("prompt"), body.get("messages")
    if (prompt is None) == (messages is None):
        raise BadRequestError("Exactly one of 'prompt' or 'messages' must be provided.")
    if messages is not None:
        return service.text.chat(body)
    if isinstance(prompt, str):
        return service.text.encode(prompt)
    if isinstance(prompt, list) and all(isinstance(item, str) for item in prompt):
        return [service.text.encode(item) for item in prompt]
    raise BadRequestError("prompt must be a string or a list of strings.")


def _decoded(service: Service, ids: object, skip_special_tokens: bool) -> str:
    vocabulary = service.limits.vocab_size
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocabulary for token in ids):
        raise BadRequestError(f"tokens must be integers in [0, {vocabulary}).")
    return service.text.decode(ids, skip_special_tokens)
