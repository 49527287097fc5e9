"""A server with nothing but the OpenAI chat API, in memory: the sglang in memory behind another door."""

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx

from .fake_sglang import FakeSglang, TokenCache


@dataclass
class FakeOpenAI(FakeSglang):
    """One cache for all, `step` tokens a page. `most` top logprobs are allowed; `lists` tells how a token's
    are listed: sorted, or as mlx-lm lists them, out of order with the first for the emitted one. `tells`:
    does usage hold cached_tokens: always, hits (misses are null), never. `template` False refuses
    chat_template_kwargs; `names` are its models, None for a page that fails."""

    step: int = 1
    most: int = 20
    lists: str = "sorted"
    tells: str = "always"
    template: bool = True
    names: tuple[str, ...] | None = ("small",)

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.paths.append(path)
        if seen := self.sees(request):
            return seen
        if path == "/v1/models" and self.names is not None:
            models = [{"id": name, "object": "model", "owned_by": "me"} for name in self.names]
            return httpx.Response(200, json={"object": "list", "data": models})
        if path == "/v1/models":
            return httpx.Response(500, text="Internal Server Error")
        if path != "/v1/chat/completions":
            return httpx.Response(404, json={"detail": "Not Found"})
        body = json.loads(request.content)
        self.bodies.append(body)
        hook = self.hooks.get(len(self.bodies))
        return (hook() if hook else None) or self._chat(body)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Numbers digit by digit with the space before them apart, behind a token that begins the text."""
        apart = [
            {
                **turn,
                "content": re.sub(
                    r"(?<!\S)\d+(?!\S)", lambda found: " ".join(("_", *found[0])), turn["content"]
                ),
            }
            for turn in messages
        ]
        return [0, *super().encode(apart)]

    def _chat(self, body: dict[str, Any]) -> httpx.Response:
        if body.get("top_logprobs", 0) > self.most > 0:
            return httpx.Response(400, json={"error": f"top_logprobs must be at most {self.most}"})
        if "chat_template_kwargs" in body and not self.template:
            return httpx.Response(400, json={"error": {"message": "unknown field chat_template_kwargs"}})
        ids = tuple(self.encode(body["messages"]))
        cache = self.caches.setdefault("all", TokenCache(self.step, "attention only"))
        hit = cache.send(ids)
        item = self._item(_native(body), ids, hit, len(ids) - hit, 1)
        details = {"cached_tokens": hit} if self.tells == "always" or (self.tells == "hits" and hit) else None
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": item["text"]},
            "finish_reason": "length",
            "logprobs": None,
        }
        if body.get("logprobs") and self.most:
            choice["logprobs"] = {"content": self._entries(item["meta_info"])}
        usage = {"prompt_tokens": self.says_prompt(len(ids)), "prompt_tokens_details": details}
        return httpx.Response(200, json={"object": "chat.completion", "choices": [choice], "usage": usage})

    def _entries(self, meta: dict[str, Any]) -> list[dict[str, Any]]:
        entries = []
        rows = zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
        for place, (chosen, row) in enumerate(rows):
            top = [self._entry(place, pair) for pair in row]
            own = self._entry(place, chosen)
            if self.lists == "mlx":
                top = top[2:3] + top[:2] + top[3:]
                own = top[0]
            entries.append({**own, "top_logprobs": top})
        return entries

    def _entry(self, place: int, pair: list[Any]) -> dict[str, Any]:
        word = self.words[pair[1]] if pair[1] < len(self.words) else f"word{pair[1]}"
        text = (" " if place else "") + word
        if self.lists == "mlx":
            return {"id": pair[1], "token": text.replace(" ", "Ġ"), "logprob": pair[0]}
        return {"token": text, "bytes": list(text.encode()), "logprob": pair[0]}


def _native(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "sampling_params": {"max_new_tokens": body["max_tokens"]},
        "top_logprobs_num": body.get("top_logprobs", 1),
    }
