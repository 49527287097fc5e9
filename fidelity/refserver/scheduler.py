"""The engine's one thread: extend what waits, then decode everything that runs, one token each, for ever.

Each submitted group is extended in one forward, alone: a single request's extend is as many tokens as the
cache left of it, and a list of prompts is one extend of all of theirs. Decoding is one forward of one token
per running request, or of that and the drafts of the tokens after it.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from .cache import checkpoint_position
from .draft import DraftHead
from .faults.pages import build_cache
from .faults.replies import build_replies
from .model import Model, Result, Segment
from .pool import Pool
from .prefill import log_prefill, prefill
from .sequence import Decode, Sequence
from .settings import Settings
from .speculative import take, with_drafts

log = logging.getLogger("fidelity.refserver")


@dataclass
class Totals:
    """Counts since the start, in tokens unless named otherwise."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    verifications: int = 0
    verified_tokens: int = 0  # added by verifications: the drafts kept and one more each
    last_throughput: float = 0.0  # decoded tokens per second of the last decode forward


@dataclass(frozen=True)
class _Flush:
    deadline: float
    done: "Future[bool]"


class Scheduler:
    """Runs sequences on a model; every method may be called from any thread.

    `pool` is the allocator that a flush empties, `decode` turns token ids into the text stop strings are
    looked for in, and `eos` are the ids that end an answer. With a `draft` head decoding is speculative.
    """

    def __init__(
        self,
        model: Model,
        pool: Pool,
        settings: Settings,
        decode: Decode,
        eos: frozenset[int],
        draft: DraftHead | None = None,
    ) -> None:
        self.settings = settings
        self.cache = build_cache(settings)
        self.totals = Totals()
        self.running: list[Sequence] = []
        self._model = model
        self._pool = pool
        self._decode_text = decode
        self._eos = eos
        self._draft = draft
        self._replies = build_replies(settings)
        self._rng = np.random.default_rng(settings.seed)
        self._inbox: queue.SimpleQueue[list[Sequence] | _Flush | None] = queue.SimpleQueue()
        self._waiting: deque[list[Sequence]] = deque()
        self._flushes: list[_Flush] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Requests waiting for their extend."""
        return sum(len(group) for group in tuple(self._waiting))

    def rng(self, seed: int | None) -> np.random.Generator:
        """The generator a request samples from: its own with a seed, else one drawn from the server's."""
        return np.random.default_rng(seed % 2**64) if seed is not None else self._rng.spawn(1)[0]

    def submit(self, group: list[Sequence]) -> None:
        """Queue sequences to be extended together in one forward."""
        for sequence in group:
            self._replies.received(sequence)
        self._inbox.put(group)

    def cancel(self, group: Iterable[Sequence]) -> None:
        """Stop working on these; those already finished are left as they are."""
        for sequence in group:
            sequence.cancelled = True

    def flush(self, timeout: float = 0.0) -> "Future[bool]":
        """Empty the cache and the allocator once idle; False if that is not so within `timeout` seconds."""
        done: Future[bool] = Future()
        self._inbox.put(_Flush(time.monotonic() + timeout, done))
        return done

    def stop(self, timeout: float = 0.5) -> None:
        """End the thread after the forward in progress, waiting at most `timeout` seconds for it."""
        self._stopped = True
        self._inbox.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._receive()
            if self._stopped:
                return
            self._drop_cancelled()
            self._answer_flushes()
            while self._waiting and self._fits(self._waiting[0]):
                self._extend(self._waiting.popleft())
            if self.running:
                self._decode()

    def _receive(self) -> None:
        """Take what has arrived; wait for something when there is nothing else to do."""
        idle = not (self.running or self._waiting or self._flushes)
        while True:
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                return
            idle = False
            if isinstance(item, _Flush):
                self._flushes.append(item)
            elif item is not None:
                self._waiting.append(item)

    def _fits(self, group: list[Sequence]) -> bool:
        return not self.running or len(self.running) + len(group) <= self.settings.max_running_requests

    def _drop_cancelled(self) -> None:
        self.running = [sequence for sequence in self.running if not sequence.cancelled]
        groups = ([sequence for sequence in group if not sequence.cancelled] for group in self._waiting)
        self._waiting = deque(group for group in groups if group)

    def _answer_flushes(self) -> None:
        idle = not (self.running or self._waiting)
        for flush in self._flushes:
            if idle:
                self.cache.clear()
                self._pool.clear()
            elif time.monotonic() < flush.deadline:
                continue
            flush.done.set_result(idle)
        self._flushes = [flush for flush in self._flushes if not flush.done.done()]

    def _extend(self, group: list[Sequence]) -> None:
        """Compute what the cache does not have of the prompts, all in one forward, and their first token."""
        try:
            segments = [self._segment(sequence) for sequence in group]
            log_prefill(segments, self.cache, self.settings, len(self.running), self.queued)
            results = prefill(self._model, segments, self.settings)
        except Exception as error:
            self._fail(group, error)
            return
        for sequence, segment, result in zip(group, segments, results, strict=True):
            try:
                sequence.state, sequence.hidden = result.state, result.hidden[-1]
                self._keep_checkpoint(sequence, segment, result)
                sequence.prefilled(result.logits, self._decode_text, self._eos)
            except Exception as error:
                self._fail([sequence], error)
                continue
            self._progress(sequence)

    def _segment(self, sequence: Sequence) -> Segment:
        request = sequence.request
        length = len(request.ids)
        limit = length - (2 if self.settings.retreat else 1)
        if request.prompt_from is not None:
            limit = min(limit, request.prompt_from)  # the logits from there on have to be computed
        match = self.cache.match(request.namespace, request.ids, max(limit, 0))
        sequence.cached_tokens = match.length
        sequence.reported_tokens = self._replies.cached(match.length)
        checkpoint = None
        if self.settings.strategy == "extra_buffer":
            checkpoint = checkpoint_position(match, length, self.settings.grid)
        state = self.cache.restore(match) if match.length else self._model.empty()
        return Segment(
            ids=request.ids[match.length :],
            state=state,
            checkpoints=() if checkpoint is None else (checkpoint,),
            logits_from=request.prompt_from,
            prompt=request.ids,
            cached=match.length,
        )

    def _keep_checkpoint(self, sequence: Sequence, segment: Segment, result: Result) -> None:
        """Insert what the extend kept, before the reply goes out: an immediate re-send must find it."""
        request = sequence.request
        for position in segment.checkpoints:
            self.cache.insert(
                request.namespace,
                request.ids[:position],
                result.checkpoints[position],
                result.state.keys,
                result.state.values,
            )
        totals = self.totals
        totals.requests += 1
        totals.prompt_tokens += len(request.ids)
        totals.cached_tokens += sequence.cached_tokens

    def _decode(self) -> None:
        batch, grid = list(self.running), self.settings.decode_grid
        started = time.perf_counter()
        try:
            segments = [sequence.step() for sequence in batch]
            if self._draft is not None:
                segments = with_drafts(self._draft, batch, segments, self.settings.speculative_num_steps)
            results = self._model.forward(segments)
        except Exception as error:
            self._fail(batch, error)
            return
        elapsed, added = time.perf_counter() - started, 0
        for sequence, segment, result in zip(batch, segments, results, strict=True):
            before = len(sequence.output_ids)
            try:
                take(sequence, segment, result, grid, self._decode_text, self._eos)
            except Exception as error:
                self._fail([sequence], error)
                continue
            added += len(sequence.output_ids) - before
            self._progress(sequence)
        self.totals.last_throughput = added / max(elapsed, 1e-9)
        if self._draft is not None:
            self.totals.verifications += len(batch)
            self.totals.verified_tokens += added

    def _progress(self, sequence: Sequence) -> None:
        """Record where a sequence now stands, and tell whoever waits for it."""
        finished = sequence.finish is not None
        if finished:
            self._keep_finished(sequence)
            self.totals.generation_tokens += len(sequence.output_ids)
            sequence.state = None
            self._leave(sequence)
        elif sequence not in self.running:
            self.running.append(sequence)
        if finished or sequence.request.stream:
            self._notify(sequence)

    def _keep_finished(self, sequence: Sequence) -> None:
        """Cache what decoding added: up to its last checkpoint, or all of it where states have no grid."""
        state = sequence.state
        if state is None:
            return
        position, recurrent = sequence.tracked or (0, state.recurrent)
        if self.settings.strategy == "no_buffer":
            position, recurrent = state.length, state.recurrent
        if position:
            ids = np.concatenate([sequence.request.ids, np.asarray(sequence.output_ids, np.int64)])[:position]
            self.cache.insert(sequence.request.namespace, ids, recurrent, state.keys, state.values)

    def _fail(self, group: list[Sequence], error: Exception) -> None:
        log.error("request failed", exc_info=error)
        message = f"{type(error).__name__}: {error}"
        for sequence in group:
            sequence.state = None
            sequence.end(
                {"type": "abort", "message": message, "status_code": 500, "err_type": "InternalServerError"}
            )
            self._leave(sequence)
            self._notify(sequence)

    def _leave(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)

    def _notify(self, sequence: Sequence) -> None:
        try:
            sequence.notify(sequence, len(sequence.output_ids))
        except Exception as error:
            log.warning("nobody to tell about request %s: %s", sequence.request.rid, error)
