"""A generation request as the engine runs it, and how the body of `/generate` becomes one or several."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadRequestError
from .logprobs import Wanted
from .sampling import Sampling, parse_sampling


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt to continue.

    `ids` are the prompt's tokens; `namespace` parts the prefix cache; `wanted` is None when no logprobs are
    asked for, and `prompt_from` the first prompt position to quote, None for none of them.
    """

    ids: NDArray[np.int64]
    sampling: Sampling
    rid: str = ""
    namespace: str = ""
    wanted: Wanted | None = None
    prompt_from: int | None = None
    return_text: bool = False
    stream: bool = False
    return_prompt_ids: bool = False


@dataclass(frozen=True)
class Generate:
    """The parsed body of `/generate`: its requests, and whether the reply is a list."""

    requests: tuple[Request, ...]
    is_list: bool
    stream: bool


@dataclass(frozen=True)
class Limits:
    """What a request is checked against: ids below `vocab_size`, at most `context_length` tokens in all."""

    vocab_size: int
    context_length: int


def new_rid() -> str:
    """A request id of the form a serving engine gives."""
    return uuid.uuid4().hex


def namespace_of(body: Mapping[str, Any]) -> str:
    """The cache namespace: `cache_salt` and `extra_key`, one after the other, either may be missing."""
    parts = [body.get(name) or "" for name in ("cache_salt", "extra_key")]
    if not all(isinstance(part, str) for part in parts):
        raise BadRequestError("extra_key and cache_salt must be strings.")
    return "".join(parts)


def check_ids(ids: object, limits: Limits) -> NDArray[np.int64]:
    """Prompt ids as an array; raises BadRequestError for none, too many, or one outside the vocabulary."""
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise BadRequestError("input_ids must be a list of integers.")
    if not ids:
        raise BadRequestError("input_ids cannot be empty.")
    outside = next((token for token in ids if not 0 <= token < limits.vocab_size), None)
    if outside is not None:
        raise BadRequestError(
            f"input_ids contains out-of-vocabulary token id {outside}; "
            f"valid range is [0, {limits.vocab_size})."
        )
    if len(ids) >= limits.context_length:
        raise BadRequestError(
            f"The input ({len(ids)} tokens) is longer than the model's context length "
            f"({limits.context_length} tokens)."
        )
    return np.asarray(ids, np.int64)


def check_total(prompt_tokens: int, sampling: Sampling, limits: Limits) -> None:
    """Raises BadRequestError if prompt and completion together would not fit the context."""
    total = prompt_tokens + sampling.max_new_tokens
    if total > limits.context_length:
        raise BadRequestError(
            f"The request needs {total} tokens ({prompt_tokens} of input, {sampling.max_new_tokens} new): "
            f"more than the model's context length ({limits.context_length} tokens)."
        )


def check_wanted(top: object, token_ids: object, limits: Limits) -> Wanted:
    """What to quote at each position; raises BadRequestError for a wrong type or an unknown id."""
    if type(top) is not int or top < 0:
        raise BadRequestError(f"top_logprobs_num must be a non-negative integer, got {top!r}.")
    if not token_ids:
        return Wanted(min(top, limits.vocab_size))
    if not isinstance(token_ids, list) or not all(type(token) is int for token in token_ids):
        raise BadRequestError("token_ids_logprob must be a flat list of integers.")
    outside = next((token for token in token_ids if not 0 <= token < limits.vocab_size), None)
    if outside is not None:
        raise BadRequestError(
            f"token_ids_logprob contains out-of-vocabulary token id {outside}; "
            f"valid range is [0, {limits.vocab_size})."
        )
    return Wanted(min(top, limits.vocab_size), tuple(token_ids))


def parse_generate(body: object, encode: Callable[[str], list[int]], limits: Limits) -> Generate:
    """The requests in the body of `/generate`; keys this engine does not know are ignored.

    Raises BadRequestError, with a message of the form sglang gives.
    """
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object.")
    prompts, is_list = _prompts(body, encode)
    count = len(prompts)
    stream = body.get("stream") is True
    per_request = [_spread(body, name, count, is_list) for name in _LISTABLE]
    token_ids = _spread_token_ids(body.get("token_ids_logprob"), count)
    rids = _rids(body.get("rid"), count, is_list)
    requests = []
    for index, ids in enumerate(prompts):
        own = dict(zip(_LISTABLE, (values[index] for values in per_request), strict=True))
        own["token_ids_logprob"] = token_ids[index]
        requests.append(_request(ids, own, body, rids[index], limits))
    return Generate(tuple(requests), is_list, stream)


_LISTABLE = (
    "sampling_params",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "extra_key",
    "cache_salt",
)


def _request(
    ids: object, own: Mapping[str, Any], body: Mapping[str, Any], rid: str, limits: Limits
) -> Request:
    array = check_ids(ids, limits)
    params = own["sampling_params"] if own["sampling_params"] is not None else {}
    if not isinstance(params, dict):
        raise BadRequestError("sampling_params must be an object or a list of objects.")
    sampling = parse_sampling(params)
    check_total(len(array), sampling, limits)
    wanted, prompt_from = None, None
    if own["return_logprob"]:
        wanted = check_wanted(own["top_logprobs_num"] or 0, own["token_ids_logprob"], limits)
        prompt_from = _prompt_from(own["logprob_start_len"], len(array))
    return Request(
        ids=array,
        sampling=sampling,
        rid=rid,
        namespace=namespace_of(own),
        wanted=wanted,
        prompt_from=prompt_from,
        return_text=body.get("return_text_in_logprobs") is True,
        stream=body.get("stream") is True,
        return_prompt_ids=body.get("return_prompt_token_ids") is True,
    )


def _prompt_from(start: object, length: int) -> int | None:
    if start is None:
        return None
    if type(start) is not int or start < -1:
        raise BadRequestError(f"logprob_start_len must be -1 or a position in the prompt, got {start!r}.")
    if start > length:
        raise BadRequestError(
            f"logprob_start_len {start} is higher than the number of input tokens {length}. "
            "Please use a smaller logprob_start_len."
        )
    return None if start in (-1, length) else start


def _prompts(body: Mapping[str, Any], encode: Callable[[str], list[int]]) -> tuple[Sequence[object], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise BadRequestError("Either text or input_ids should be provided, and not both.")
    if isinstance(text, str):
        if not text:
            raise BadRequestError("text cannot be empty.")
        return [encode(text)], False
    if text is not None:
        if not isinstance(text, list) or not text or not all(isinstance(item, str) for item in text):
            raise BadRequestError("text must be a string or a list of strings.")
        return [encode(item) for item in text], True
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        return ids, True
    return [ids], False


def _spread(body: Mapping[str, Any], name: str, count: int, is_list: bool) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list):
        return [value] * count
    if not is_list or len(value) != count:
        raise BadRequestError(f"{name} has {len(value)} entries for {count} prompts.")
    return value


def _spread_token_ids(value: Any, count: int) -> list[Any]:
    """A flat list of ids serves every prompt; a list of lists gives each its own."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        if len(value) != count:
            raise BadRequestError(f"token_ids_logprob has {len(value)} lists for {count} prompts.")
        return value
    return [value] * count


def _rids(rid: object, count: int, is_list: bool) -> list[str]:
    if rid is None:
        return [new_rid() for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{index}" for index in range(count)] if is_list else [rid]
    if is_list and isinstance(rid, list) and len(rid) == count and all(isinstance(item, str) for item in rid):
        return rid
    raise BadRequestError("rid must be a string, or a list of one string per prompt.")
