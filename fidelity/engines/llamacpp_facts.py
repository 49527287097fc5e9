"""What a llama.cpp server says of itself and of its load, by GETs that compute nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from fidelity.engines import json_reader
from fidelity.engines.facts import PROMPT_END, ServerFacts
from fidelity.engines.prometheus import scrape, total
from fidelity.engines.secrets import scrub
from fidelity.engines.solitude import Load
from fidelity.engines.wire import first_found
from fidelity.errors import NotWhatWasAskedError

COMPUTED = "llamacpp:prompt_tokens_total"
WAITING = "llamacpp:requests_deferred"

RAISED_TOP_K = 1000
"""It tells as many logprobs as are asked for; these leave under 0.05 nat open of a random model's answer."""

LACKS = {
    "scores": "llama.cpp gives no logprobs of prompt tokens: what it generated cannot be scored again",
    "list": "llama.cpp does not say whether the prompts of a list ran together",
    "stream": "streamed answers of llama.cpp are not timed",
    "tools": "llama.cpp's chat endpoint has no namespaces: no send of it can be told to be a cold one",
}


def recognise(client: httpx.Client) -> str | None:
    """By the slots in its /props, which no other engine has."""
    found = first_found(client, ("/props",))
    return None if found is None or not _is_props(found) else "the slots of its /props"


def facts(client: httpx.Client) -> ServerFacts:
    """What the server says of itself. Raises UnreachableError, NotWhatWasAskedError."""
    props = first_found(client, ("/props",))
    if props is None or not _is_props(props):
        raise NotWhatWasAskedError(
            f"{client.base_url} answers, but not as a llama.cpp server (no slots in a /props)",
            "give the address of the llama-server itself; while it loads its model it does not answer either",
        )
    models = first_found(client, ("/v1/models",)) or {}
    notes = _notes(props, look(client))
    return replace(read_facts(props, models), notes=tuple(notes))


def read_facts(props: Mapping[str, Any], models: Mapping[str, Any]) -> ServerFacts:
    """Facts from `/props` and `/v1/models`. Neither tells whether the model keeps a recurrent state, so
    every hit follows a prompt that ends where it is to resume, which both kinds of model can serve."""
    settings = _dict(props.get("default_generation_settings"))
    served = models.get("data")
    model = _dict(served[0]) if isinstance(served, list) and served else {}
    meta = _dict(model.get("meta"))
    draft = _dict(settings.get("params")).get("speculative.types")
    told = {
        "model_path": props.get("model_path"),
        "served_model_name": model.get("id"),
        "context_length": settings.get("n_ctx"),
        "speculative_algorithm": None if draft in (None, "", "none") else str(draft),
        "page_size": 1,
        "props": dict(props),
        "models": dict(models),
    }
    vocabulary = meta.get("n_vocab")
    return ServerFacts(
        engine="llamacpp",
        version=str(props.get("build_info") or "unknown"),
        model=str(props.get("model_alias") or model.get("id") or props.get("model_path") or "unknown"),
        grid=1,
        page_size=1,
        strategy=PROMPT_END,
        vocab_size=vocabulary if type(vocabulary) is int and vocabulary > 0 else None,
        lacks=LACKS,
        raised_top_k=RAISED_TOP_K,
        raw=scrub(told),
    )


def look(client: httpx.Client) -> Load | None:
    """The load: slots at work and requests that wait, prompt tokens computed; None where /slots is off."""
    try:
        response = client.get("/slots", timeout=10)
        slots = json_reader.parse(response.text) if response.status_code == 200 else None
    except (httpx.TransportError, ValueError):
        return None
    if not isinstance(slots, list) or not slots or not all(isinstance(slot, dict) for slot in slots):
        return None
    working = [slot.get("is_processing") for slot in slots]
    if not all(isinstance(works, bool) for works in working):
        return None
    metrics = scrape(client)
    computed = total(metrics, COMPUTED)
    waiting = int(total(metrics, WAITING) or 0)
    return Load(sum(map(bool, working)) + waiting, None if computed is None else int(computed))


def _notes(props: Mapping[str, Any], load: Load | None) -> list[str]:
    notes = [
        "a cold send is one with the prompt cache switched off: no slot is erased, which by default would "
        "flush nothing",
        "the server does not tell whether its model keeps a recurrent state: hits follow a prompt that ends "
        "where they resume, and only their own counts prove them",
        "with a recurrent state the server ends each prompt's prefill in a batch of its last tokens (4 were "
        "seen): a cold send and a hit with that tail may share their last step, and only tail 1 differs",
    ]
    if "unknown" in str(props.get("build_info") or "unknown"):
        notes.append("the server does not tell its version")
    slots = props.get("total_slots")
    if isinstance(slots, int) and slots > 1:
        notes.append(f"every request is pinned to slot 0 of {slots}")
    if load is not None and load.computed is None:
        notes.append("without --metrics, a request of others that comes and goes beside a hit does not show")
    return notes


def _is_props(found: Mapping[str, Any]) -> bool:
    return "total_slots" in found and "default_generation_settings" in found


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
