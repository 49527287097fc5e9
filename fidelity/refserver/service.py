"""A loaded server: its settings, weights, tokenizer and running engine."""

from dataclasses import dataclass, field
from time import time
from typing import cast

import numpy as np

from .draft import DraftHead, load_draft
from .faults.assembly import build_model
from .faults.pages import build_pool
from .moe import Experts, Fault, Guard
from .requests import Limits
from .scheduler import Scheduler
from .settings import Settings
from .text import Text
from .weights import Weights, load


@dataclass(frozen=True)
class Service:
    """Everything a request handler needs; `started` is in seconds since the epoch."""

    settings: Settings
    weights: Weights
    text: Text
    scheduler: Scheduler
    started: float = field(default_factory=time)

    @property
    def limits(self) -> Limits:
        """What requests are checked against."""
        return Limits(self.weights.config.vocab_size, self.settings.context_length)


def start(settings: Settings) -> Service:
    """Load the profile and start the engine's thread.

    Raises FileNotFoundError for a profile, tokenizer or draft head that is not there, ValueError for one that
    is broken or belongs to another.
    """
    weights = load(settings.profile)
    text = Text(weights.tokenizer)
    pool = build_pool(settings)
    experts = Experts(
        pool=pool,
        cu=settings.cu,
        guard=cast(Guard, settings.expert_guard),
        fault=cast(Fault, settings.expert_fault),
        noise=settings.noise,
        rng=np.random.default_rng(settings.seed),
    )
    model = build_model(weights, experts, settings.faults, settings.seed)
    model.warm_up()
    model.deterministic = settings.deterministic
    draft = None
    if settings.speculative is not None:
        draft = DraftHead(load_draft(settings.profile, weights), model)
    scheduler = Scheduler(model, pool, settings, text.decode, text.eos, draft)
    return Service(settings, weights, text, scheduler)
