"""The prompts of one run: chosen by the seed, fitted once, screened on the first arm, the same for every
arm."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from fidelity.compare import broken_rules, covered_mass, top_probability
from fidelity.engines.facts import ServerFacts
from fidelity.engines.registry import Engine, engine_of, meet
from fidelity.engines.request import TOP_K
from fidelity.errors import LengthError, NotWhatWasAskedError, UnreachableError
from fidelity.observations import Observation
from fidelity.plan import RunPlan
from fidelity.plan_reference import is_url
from fidelity.probes.cells import Cell
from fidelity.prompts.embedded import EmbeddedTokenizer
from fidelity.prompts.families import prompt_id
from fidelity.prompts.fitting import Fitted, fit
from fidelity.prompts.loading import load_families
from fidelity.prompts.local import LocalTokenizer
from fidelity.prompts.select import Prompt, choose
from fidelity.prompts.tokenizers import ChatTokenizer, Messages, Post

WARMUP_PROMPTS = 8


@dataclass
class PromptSource:
    """`order` are all prompts, the ones to use first; `taken` those measured so far, `replaced` those passed
    over with the reason; `settled` once the first arm has made the choice; `covered` is the mass of each
    screened answer's top logprobs, `begins` its first token; `fixed` are ids of prompts to take whether the
    model is sure of them or not."""

    count: int
    order: list[Prompt]
    tokenizer: ChatTokenizer
    taken: list[Prompt] = field(default_factory=list)
    unsure: list[Prompt] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    settled: bool = False
    covered: dict[str, float] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    raised_top_k: int = ServerFacts.raised_top_k
    _fitted: dict[tuple[str, int], Fitted] = field(default_factory=dict)
    _encoded: dict[str, list[int]] = field(default_factory=dict)

    def encode(self, messages: Messages) -> list[int]:
        """Token ids of a templated conversation, the same on every arm. Raises PromptError."""
        key = json.dumps(messages)
        if key not in self._encoded:
            self._encoded[key] = self.tokenizer.encode(messages)
        return self._encoded[key]

    def fit(self, prompt: str, length: int) -> Fitted:
        """The prompt at exactly `length` templated tokens. Raises LengthError."""
        key = (prompt, length)
        if key not in self._fitted:
            entry = next(entry for entry in self.order if entry.id == prompt)
            self._fitted[key] = fit(entry.family, entry.item, length, self.tokenizer)
        return self._fitted[key]

    def samples(self, cells: Sequence[Cell]) -> list[Sequence[int]]:
        """Token ids for the warm-up: several prompts at the plan's longest length."""
        length = max(cell.length for cell in cells)
        found: list[Sequence[int]] = []
        for entry in self.order[: 2 * WARMUP_PROMPTS]:
            try:
                found.append(self.fit(entry.id, length).ids)
            except LengthError:
                continue
            if len(found) == WARMUP_PROMPTS:
                break
        if not found:
            self.fit(self.order[0].id, length)
        return found

    def accepted(self) -> Iterator[Prompt]:
        """The settled choice; nothing before the first arm has made it."""
        return iter(self.taken if self.settled else ())

    def candidates(self, cells: Sequence[Cell]) -> Iterator[Prompt]:
        """Prompts to try, until `count` are taken; at most twice as many are tried. Raises LengthError if no
        prompt reaches the plan's lengths."""
        tried = 0
        error: LengthError | None = None
        for entry in self.order:
            if len(self.taken) >= self.count or tried >= 2 * self.count:
                break
            try:
                for cell in cells:
                    self.fit(entry.id, cell.length)
            except LengthError as exc:
                self.replaced.append(f"{entry.id}: {exc.message}")
                error = exc
                continue
            tried += 1
            yield entry
        if error and not self.taken and not self.unsure:
            raise error

    def admit(self, entry: Prompt, screened: Observation | None, sure: float) -> bool:
        """Take the prompt unless the model is unsure of it. A broken answer is no doubt: it is taken and
        judged."""
        if screened is None or screened.answer.failed:
            self.replaced.append(f"{entry.id}: no answer")
            return False
        self.covered[entry.id] = covered_mass(screened.answer)
        if screened.answer.output_ids:
            self.begins[entry.id] = screened.answer.output_ids[0]
        probability = top_probability(screened.answer)
        if entry.id in self.fixed or broken_rules(screened.answer) or probability >= sure:
            self.taken.append(entry)
            return True
        self.unsure.append(entry)
        self.replaced.append(f"{entry.id}: cold top-1 probability {probability:.2f}")
        return False

    def top_k(self, prompt: str, slack: float) -> int:
        """How many logprobs to ask for: more where those of the screened answer would leave over `slack` nats
        of a JSD open, which is ln 2 times the mass that they do not cover."""
        left = math.log(2) * (1 - self.covered.get(prompt, 1.0))
        return self.raised_top_k if left > slack else TOP_K

    def take_unsure(self) -> Iterator[Prompt]:
        """Fill up with unsure prompts where too few are sure."""
        for entry in self.unsure:
            if len(self.taken) >= self.count:
                return
            self.taken.append(entry)
            self.replaced = [line for line in self.replaced if not line.startswith(f"{entry.id}:")]
            yield entry


def open_prompts(
    plan: RunPlan, client: httpx.Client, engine: Engine, before: PromptSource | None = None
) -> PromptSource:
    """Order the plan's prompts, open its tokenizer; what an arm `before` chose and fitted is kept, and only
    asked of this arm's server from now on. Raises PromptError."""
    if before is not None:
        before.tokenizer = _tokenizer(plan, client, engine)
        return before
    order, fixed = _as_in_reference(plan, order_prompts(plan))
    return PromptSource(plan.prompts.count, order, _tokenizer(plan, client, engine), fixed=fixed)


@contextmanager
def tokenizer_for(plan: RunPlan) -> Iterator[ChatTokenizer]:
    """The tokenizer of a plan without a run: local, an attached server's, or the embedded one. Raises
    PromptError."""
    if plan.prompts.tokenizer or plan.target.kind != "attach":
        yield _local(plan)
        return
    from fidelity.servers.attach import attach

    with attach(plan.target) as server:
        facts = meet(server.client, plan.target.api)
        yield _tokenizer(plan, server.client, engine_of(facts))


def _tokenizer(plan: RunPlan, client: httpx.Client, engine: Engine) -> ChatTokenizer:
    if plan.prompts.tokenizer:
        return _local(plan)
    return engine.tokenizer(client, _poster(client), plan.prompts.thinking)


def _local(plan: RunPlan) -> ChatTokenizer:
    if plan.prompts.tokenizer:
        return LocalTokenizer(plan.prompts.tokenizer, plan.prompts.thinking)
    return EmbeddedTokenizer(plan.prompts.thinking)


def order_prompts(plan: RunPlan) -> list[Prompt]:
    """Every prompt of the plan's families: those to use first shuffled by the seed, then the reserve."""
    folder = plan.prompts.folder
    families = load_families(None if folder is None else [folder])
    only = plan.prompts.families
    wanted = [family for family in families if not only or family.family in only]
    known = {prompt_id(family, item) for family in wanted for item in family.items}
    # The shipped default names the first thread's prompt; other folders and families may not have it.
    own = folder is None and not only
    include = [name for name in plan.prompts.include if own or name in known]
    count = plan.prompts.count
    chosen, reserve = choose(families, count, plan.seed, include=include[:count], only=only)
    random.Random(f"{plan.seed}/prompts").shuffle(chosen)
    return chosen + reserve


def _as_in_reference(plan: RunPlan, order: list[Prompt]) -> tuple[list[Prompt], frozenset[str]]:
    """With a recorded reference, its prompts come first, and none is passed over: a fault that cold sends
    share must not choose the prompts. Raises ResultsError."""
    if plan.reference is None or is_url(plan.reference):
        return order, frozenset()
    from fidelity.reference import load

    place = {name: number for number, name in enumerate(load(plan.reference).source.prompts)}
    fixed = [entry for entry in order if entry.id in place]
    fixed.sort(key=lambda entry: place[entry.id])
    return fixed + [entry for entry in order if entry.id not in place], frozenset(place)


def shuffled_cells(plan: RunPlan, cells: Sequence[Cell], prompt: str) -> list[Cell]:
    """The order of lengths within one prompt: by the seed, suspects first when the run stops at the first
    proof."""
    order = list(cells)
    random.Random(f"{plan.seed}/{prompt}").shuffle(order)
    if plan.fail_fast:
        order.sort(key=lambda cell: cell.kind != "suspect")
    return order


def _poster(client: httpx.Client) -> Post:
    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = client.post(path, json=body)
        except httpx.TransportError as exc:
            raise UnreachableError(f"{client.base_url} does not answer on {path}: {exc}") from exc
        if response.status_code != 200:
            raise NotWhatWasAskedError(
                f"{path} answers {response.status_code}: {response.text[:200]}",
                "give a local tokenizer with --tokenizer FOLDER_OR_HUB_ID",
            )
        try:
            data = response.json()
        except ValueError as exc:
            raise NotWhatWasAskedError(f"{path} answers with something that is not JSON") from exc
        if not isinstance(data, dict):
            raise NotWhatWasAskedError(f"{path} answers with something that is no JSON object")
        return data

    return post
