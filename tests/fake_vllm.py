"""A small vLLM in memory: the sglang in memory behind `/v1/completions`, `/metrics` and `/v1/models`."""

import json
import math
from dataclasses import dataclass
from typing import Any

import httpx

from .fake_sglang import FakeSglang, TokenCache

RANGE = "Out of range float values are not JSON compliant"


class Blocks(TokenCache):
    """Whole blocks hit, never the last token. A hybrid's prefill leaves a state where the last block before
    its last token ends, and none elsewhere."""

    def __init__(self, block: int, hybrid: bool) -> None:
        super().__init__(block, "attention only")
        self.hybrid = hybrid

    def send(self, ids: tuple[int, ...]) -> int:
        if not self.hybrid:
            return super().send(ids)
        ends = list(range(self.grid, len(ids), self.grid))
        hit = max((n for n in ends if ids[:n] in self.states), default=0)
        if ends:
            self.states.add(ids[: ends[-1]])
        return hit


@dataclass
class FakeVLLM(FakeSglang):
    """`hybrid`: 'align' mode, so that a cold prefill too ends in a step of its own. `most` logprobs are
    allowed. `details` False is a server without --enable-prompt-tokens-details."""

    block: int = 64
    hybrid: bool = False
    most: int = 20
    details: bool = True
    owner: str = "vllm"

    @property
    def splits(self) -> bool:
        """Does a prefill end in a step of its own?"""
        return self.hybrid and self.caching

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/completions":
            self.paths.append(path)
            if seen := self.sees(request):
                return seen
            body = json.loads(request.content)
            self.bodies.append(body)
            hook = self.hooks.get(len(self.bodies))
            return (hook() if hook else None) or self._complete(body)
        if path == "/detokenize":
            ids = json.loads(request.content)["tokens"]
            return httpx.Response(200, json={"prompt": " ".join(self.words[token] for token in ids)})
        if path == "/version":
            return httpx.Response(200, json={"version": "0.32.0"})
        if path == "/v1/models":
            card = {"id": "tiny", "object": "model", "owned_by": self.owner, "max_model_len": 4096}
            return httpx.Response(200, json={"object": "list", "data": [card]})
        if path == "/metrics":
            return httpx.Response(200, text=self._metrics())
        if path in ("/server_info", "/model_info", "/v1/loads"):
            return httpx.Response(404, json={"detail": "Not Found"})
        return super().handle(request)

    def _metrics(self) -> str:
        self.paths.append("/v1/loads")
        load = self._load()
        mode = "align" if self.splits else "none"
        labels = f'block_size="{self.block}",mamba_cache_mode="{mode}",enable_prefix_caching="{self.caching}"'
        return (
            f'# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels},engine="0"}} 1.0\n'
            f'vllm:num_requests_running{{engine="0"}} {load["num_running_reqs"]}.0\n'
            'vllm:num_requests_waiting{engine="0"} 0.0\n'
            'vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 7.0\n'
            f'vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} {self.computed}.0\n'
        )

    def _complete(self, body: dict[str, Any]) -> httpx.Response:
        ids, wanted = tuple(body["prompt"]), max(body.get("logprobs") or 0, body.get("prompt_logprobs") or 0)
        if wanted > self.most:
            return _refused(f"Requested sample logprobs of {wanted}, which is greater than max {self.most}")
        if any(token >= 512 for token in ids):
            return _refused(f"Token id {max(ids)} is out of vocabulary")
        if any(letter in body["cache_salt"] for letter in "@/\\") or len(body["cache_salt"]) > 128:
            return _refused("Parameter 'cache_salt' must be at most 128 characters")
        scoring = body.get("prompt_logprobs") is not None
        cache = self.caches.setdefault(body["cache_salt"], Blocks(self.block, self.hybrid))
        hit = 0 if scoring or not self.caching else cache.send(ids)
        self.computed += len(ids) - hit
        step = (len(ids) - 1) % self.block + 1 if self.splits else len(ids) - hit
        count = body["max_tokens"]
        native = {"sampling_params": {"max_new_tokens": count}, "top_logprobs_num": wanted}
        if body.get("logprobs"):
            self.continued.add(ids)
        item = self._item(native | ({"logprob_start_len": 0} if scoring else {}), ids, hit, step, 1)
        meta = item["meta_info"]
        choice = {"text": item["text"], "token_ids": item["output_ids"], "finish_reason": "length"}
        choice |= {"logprobs": _sampled(meta) if body.get("logprobs") else None}
        choice |= {"prompt_logprobs": _prompt(meta) if scoring else None}
        told = {"cached_tokens": meta["cached_tokens"]} if self.details else None
        usage = {"prompt_tokens": meta["prompt_tokens"], "prompt_tokens_details": told}
        try:
            text = json.dumps({"choices": [choice], "usage": usage}, allow_nan=False)
        except ValueError:
            return _refused(RANGE)
        return httpx.Response(200, text=text)


def _refused(message: str) -> httpx.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return httpx.Response(400, json={"error": error})


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _sampled(meta: dict[str, Any]) -> dict[str, Any]:
    chosen = meta["output_token_logprobs"]
    return {
        "tokens": [f"token_id:{token}" for _, token, _ in chosen],
        "token_logprobs": [_number(value) for value, _, _ in chosen],
        "top_logprobs": [
            {f"token_id:{token}": _number(value) for value, token, _ in row}
            for row in meta["output_top_logprobs"]
        ],
    }


def _prompt(meta: dict[str, Any]) -> list[dict[str, Any] | None]:
    """The prompt's own token comes first, whatever its rank; then the likeliest ones by rank."""
    rows: list[dict[str, Any] | None] = []
    pairs = zip(meta["input_token_logprobs"], meta["input_top_logprobs"], strict=True)
    for (value, token, _), top in pairs:
        if value is None:
            rows.append(None)
            continue
        ranked = {str(one): {"logprob": lp, "rank": n} for n, (lp, one, _) in enumerate(top, start=1)}
        own = ranked.get(str(token), {"logprob": value, "rank": 300})
        rows.append({str(token): own, **ranked})
    return rows
