"""A small sglang in memory: one word is one token, a prefix cache kept as tokens, faults by name."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

VOCABULARY = 512
URL = "http://fake"


class TokenCache:
    """One namespace of a prefix cache, kept as the tokens themselves and walked one position at a time.

    Written from the measured behaviour of sglang 0.5.17 and 0.5.21, not from the product's prediction.
    """

    def __init__(self, grid: int = 64, strategy: str = "extra_buffer", min_tail: int = 1) -> None:
        self.grid, self.strategy, self.min_tail = grid, strategy, min_tail
        self.keys: list[tuple[int, ...]] = []
        self.states: set[tuple[int, ...]] = set()

    def send(self, ids: tuple[int, ...]) -> int:
        """Tokens served from the cache; what the prefill leaves behind is kept."""
        allowed = ids[: max(len(ids) - self.min_tail, 0)]
        matched = max((_common(allowed, key) for key in self.keys), default=0)
        aligned = max((n for n in range(matched + 1) if n % self.grid == 0), default=0)
        self.keys.append(ids)
        if self.strategy == "attention only":
            return aligned
        usable = [len(state) for state in self.states if allowed[: len(state)] == state]
        hit = max((n for n in usable if n <= matched), default=0)
        if self.strategy == "no_buffer":
            self.states.add(ids)
        elif aligned > hit:
            self.states.add(ids[:aligned])
        else:
            passed = [n for n in range(hit + 1, len(ids) + 1) if n % self.grid == 0]
            if passed:
                self.states.add(ids[: passed[-1]])
        return hit


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass
class FakeSglang:
    """Answers with the last word of the prompt. One word is one token; id 0 is "!".

    `fault` shows where `affects(tokens computed at once, right answer)` is true: nan, nan 500, hard flip,
    off-list, flat, near-tie, moved, no logprobs. `hooks[n]` is called before the n-th /generate (from 1)
    and may answer or raise. `says_cached` and `says_prompt` change what is reported, not what is computed.
    `company` is how many requests of others run, `others` how many prompt tokens of others were computed by
    the n-th look at /v1/loads; `loads` False has no such page. `sees(request)` may answer in place of
    everything.
    """

    fault: str = "none"
    affects: Callable[[int, str], bool] = lambda computed, _: computed == 1
    info: dict[str, Any] = field(default_factory=dict)
    strategy: str = "extra_buffer"
    min_tail: int = 1
    namespaces: bool = True
    caching: bool = True
    top: float = 0.97
    second: float = 0.004
    token_offset: int = 0
    says_cached: Callable[[int], int | None] = lambda cached: cached
    says_prompt: Callable[[int], int | None] = lambda count: count
    hooks: dict[int, Callable[[], httpx.Response | None]] = field(default_factory=dict)
    dead: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    loads: bool = True
    company: Callable[[int], int] = lambda look: 0
    others: Callable[[int], int] = lambda look: 0
    says_computed: Callable[[int], int | None] = lambda computed: computed
    sees: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
    computed: int = 0
    words: list[str] = field(default_factory=lambda: ["!"])
    caches: dict[str, TokenCache] = field(default_factory=dict)
    continued: set[tuple[int, ...]] = field(default_factory=set)

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self.handle), base_url=URL)

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.paths.append(path)
        if self.dead:
            raise httpx.ConnectError("Connection refused")
        if seen := self.sees(request):
            return seen
        body = json.loads(request.content) if request.content else {}
        if path == "/generate":
            self.bodies.append(body)
            hook = self.hooks.get(len(self.bodies))
            answer = hook() if hook else None
            return answer or self._generate(body)
        if path == "/tokenize":
            ids = self.encode(body["messages"])
            return httpx.Response(200, json={"tokens": ids, "count": len(ids), "max_model_len": 4096})
        if path == "/detokenize":
            return httpx.Response(200, json={"text": " ".join(self.words[id_] for id_ in body["tokens"])})
        if path == "/v1/loads" and self.loads:
            return httpx.Response(200, json={"loads": [self._load()]})
        if path == "/server_info":
            info = {"version": "0.5.21", "page_size": 1, "mamba_radix_cache_strategy": self.strategy}
            return httpx.Response(200, json={**info, "vocab_size": VOCABULARY, **self.info})
        if path == "/model_info":
            return httpx.Response(200, json={"model_path": "fake", "model_type": "qwen3_next"})
        return httpx.Response(404, json={"detail": "Not Found"})

    def _load(self) -> dict[str, Any]:
        look = self.paths.count("/v1/loads")
        computed = self.says_computed(self.computed + self.others(look))
        load = {"dp_rank": 0, "num_running_reqs": self.company(look), "num_waiting_reqs": 0}
        return load if computed is None else {**load, "total_prefill_uncached_tokens": computed}

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        text = " ".join(f"<{turn['role']}> {turn['content']}" for turn in messages) + " <assistant>"
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) + self.token_offset for word in text.split()]

    def _generate(self, body: dict[str, Any]) -> httpx.Response:
        lists = body.get("token_ids_logprob") or []
        asked = [token for own in lists for token in (own if isinstance(own, list) else [own])]
        unknown = [token for token in asked if not 0 <= token < VOCABULARY]
        if unknown:
            message = f"token_ids_logprob contains out-of-vocabulary token id {unknown[0]}; "
            return httpx.Response(
                400, json={"error": {"message": f"{message}valid range is [0, {VOCABULARY})."}}
            )
        if "text" in body:
            texts = [body["text"]] if isinstance(body["text"], str) else body["text"]
            ids = [[self.words.index(word) for word in text.split()] for text in texts]
            body = {**body, "input_ids": ids[0] if isinstance(body["text"], str) else ids}
        single = isinstance(body["input_ids"][0], int)
        prompts = [tuple(ids) for ids in ([body["input_ids"]] if single else body["input_ids"])]
        keys = [body["extra_key"]] if single else body["extra_key"]
        hits = [self._lookup(ids, key) for ids, key in zip(prompts, keys, strict=True)]
        if body.get("logprob_start_len") == 0:
            hits = [0] * len(hits)
        computed = sum(len(ids) - hit for ids, hit in zip(prompts, hits, strict=True))
        self.computed += computed
        if body["sampling_params"]["max_new_tokens"]:
            self.continued.update(prompts)
        wanted = [lists] if single else lists or [[] for _ in prompts]
        items = [
            self._item({**body, "token_ids_logprob": own}, ids, hit, computed, len(prompts))
            for ids, hit, own in zip(prompts, hits, wanted, strict=True)
        ]
        if self.fault == "nan 500" and any(item["output_ids"][:1] == [0] for item in items):
            message = "Out of range float values are not JSON compliant"
            return httpx.Response(500, json={"error": {"message": message}})
        return httpx.Response(200, json=items[0] if single else items)

    def _lookup(self, ids: tuple[int, ...], key: str) -> int:
        name = key if self.namespaces else "all"
        cache = self.caches.setdefault(name, TokenCache(64, self.strategy, self.min_tail))
        return cache.send(ids) if self.caching else 0

    def _item(
        self, body: dict[str, Any], ids: tuple[int, ...], hit: int, computed: int, together: int
    ) -> dict[str, Any]:
        right = ids[-2]
        rows = []
        for step in range(body["sampling_params"]["max_new_tokens"]):
            size = computed if step == 0 else together
            shows = self.affects(size, self.words[right]) and self.fault != "none"
            rows.append(self._row((right + step) % len(self.words), shows))
        tokens = [token for token, _, _ in rows]
        ranked = [sorted(row.items(), key=lambda pair: -(pair[1] or 0.0)) for _, row, _ in rows]
        wanted = body.get("token_ids_logprob") or []
        logprobs = {
            "output_token_logprobs": [[row[token], token, None] for token, row, _ in rows],
            "output_top_logprobs": [
                [[lp, i, None] for i, lp in row[: body["top_logprobs_num"]]] for row in ranked
            ],
            "output_token_ids_logprobs": [
                [[row.get(i, rest), i, None] for i in wanted] for _, row, rest in rows
            ],
        }
        if body.get("logprob_start_len") == 0:
            logprobs |= self._scored(body, ids)
        silent = self.fault == "no logprobs" and self.affects(computed, self.words[right])
        return {
            "text": " ".join(self.words[token] for token in tokens),
            "output_ids": tokens,
            "meta_info": {
                "finish_reason": {"type": "length", "length": len(tokens)},
                "prompt_tokens": self.says_prompt(len(ids)),
                "cached_tokens": self.says_cached(hit),
                **({} if silent else logprobs),
            },
        }

    def _scored(self, body: dict[str, Any], ids: tuple[int, ...]) -> dict[str, Any]:
        """The prompt's own logprobs: what follows `<assistant>` is scored as it is generated, the rest -2."""
        # A generated answer may hold that word too: what was continued before ends with the right one.
        ends = [n for n, token in enumerate(ids) if self.words[token] == "<assistant>"]
        end = max([n for n in ends if ids[: n + 1] in self.continued] or ends)
        tokens: list[Any] = [[None if n == 0 else -2.0, ids[n], None] for n in range(end + 1)]
        top: list[Any] = [None, *[[[-2.0, ids[n], None]] for n in range(1, end + 1)]]
        for n in range(end + 1, len(ids)):
            _, row, rest = self._row((ids[end - 1] + n - end - 1) % len(self.words), False)
            ranked = sorted(row.items(), key=lambda pair: -(pair[1] or 0.0))[: body["top_logprobs_num"]]
            tokens.append([row.get(ids[n], rest), ids[n], None])
            top.append([[logprob, token, None] for token, logprob in ranked])
        return {"input_token_logprobs": tokens, "input_top_logprobs": top}

    def _row(self, right: int, shows: bool) -> tuple[int, dict[int, float | None], float | None]:
        """The emitted id, the logprobs of the 25 likeliest ids, and that of any other."""
        if shows and self.fault in ("nan", "nan 500"):
            return 0, dict.fromkeys(range(25), None), None
        if shows and self.fault == "flat":
            return 0, dict.fromkeys(range(25), -math.log(VOCABULARY)), -math.log(VOCABULARY)
        far = len(self.words) // 2
        first = (right + {"hard flip": 1, "off-list": far}.get(self.fault, 0) * shows) % len(self.words)
        second = (first + 1) % len(self.words)
        row = {(first + n) % VOCABULARY: math.log(0.004) - 0.4 * n for n in range(2, 25)}
        row |= {first: math.log(self.top), second: math.log(self.second)}
        if shows and self.fault == "moved":
            row |= {token: row[token] - 0.4 for token in row if token != first}
        if shows and self.fault == "near-tie":
            row[first], row[second] = row[second], row[first]
            first = second
        return first, dict(row), -15.0
