"""Bodies of the OpenAI endpoints turned into the engine's requests."""

from collections.abc import Mapping
from typing import Any

from .errors import BadRequestError
from .logprobs import Wanted
from .requests import Request, check_ids, check_total, check_wanted, namespace_of, new_rid
from .sampling import parse_sampling
from .service import Service

COMPLETION_TOKENS = 16  # `/v1/completions` without max_tokens


def chat_requests(service: Service, body: Mapping[str, Any]) -> tuple[Request, ...]:
    """The one request of a chat; `input_ids` in the body stand for its messages.

    Raises BadRequestError for a body that cannot be served.
    """
    ids = body["input_ids"] if body.get("input_ids") is not None else service.text.chat(body)
    wanted = None
    if body.get("logprobs"):
        wanted = check_wanted(body.get("top_logprobs") or 0, None, service.limits)
    room = max(service.limits.context_length - len(ids), 1)
    return (_request(service, body, ids, wanted, room),)


def completion_requests(service: Service, body: Mapping[str, Any]) -> tuple[Request, ...]:
    """One request per prompt: a text, a list of texts, a list of ids or a list of such lists.

    Raises BadRequestError for a body that cannot be served.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        prompts: list[Any] = [service.text.encode(prompt)]
    elif isinstance(prompt, list) and prompt and all(isinstance(item, str) for item in prompt):
        prompts = [service.text.encode(item) for item in prompt]
    elif isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        prompts = prompt
    else:
        prompts = [prompt]
    wanted = None
    if body.get("logprobs") is not None and body["logprobs"] is not False:
        wanted = check_wanted(body["logprobs"], None, service.limits)
    return tuple(_request(service, body, ids, wanted, COMPLETION_TOKENS) for ids in prompts)


def _request(
    service: Service, body: Mapping[str, Any], ids: object, wanted: Wanted | None, tokens: int
) -> Request:
    array = check_ids(ids, service.limits)
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    params = {**body, "max_new_tokens": limit, "sampling_seed": body.get("seed")}
    sampling = parse_sampling(params, default_max_new_tokens=tokens)
    if sampling.max_new_tokens < 1:
        raise BadRequestError(f"max_tokens must be at least 1, got {sampling.max_new_tokens}.")
    check_total(len(array), sampling, service.limits)
    echo = body.get("echo") is True and wanted is not None
    return Request(
        ids=array,
        sampling=sampling,
        rid=new_rid(),
        namespace=namespace_of(body),
        wanted=wanted,
        prompt_from=0 if echo else None,
        stream=body.get("stream") is True,
    )
