"""Between the event loop and the engine's thread: wait for answers, follow them, leave with the client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest

from .errors import BadRequestError, ClientGoneError, EngineError
from .requests import Request
from .scheduler import Scheduler
from .sequence import Sequence


async def body_of(http: HttpRequest) -> dict[str, Any]:
    """The JSON object sent; raises BadRequestError for anything else."""
    try:
        body = await http.json()
    except ValueError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object.")
    return body


async def answers(
    http: HttpRequest | None, scheduler: Scheduler, requests: tuple[Request, ...]
) -> list[Sequence]:
    """Run requests as one group and wait for all of them; `http` None is a request of the server itself.

    Raises ClientGoneError when the client leaves first, EngineError when one of them failed.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = len(requests)

    def finished() -> None:
        nonlocal left
        left -= 1
        if left == 0 and not done.done():
            done.set_result(None)

    def notify(sequence: Sequence, _: int) -> None:
        if sequence.finish is not None:
            loop.call_soon_threadsafe(finished)

    sequences = [
        Sequence(request, scheduler.rng(request.sampling.sampling_seed), notify) for request in requests
    ]
    gone = asyncio.ensure_future(_disconnected(http)) if http else loop.create_future()
    scheduler.submit(sequences)
    try:
        await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        scheduler.cancel(sequences)
    if not done.done():
        raise ClientGoneError
    failure = next((sequence.failure for sequence in sequences if sequence.failure), None)
    if failure:
        raise EngineError(failure)
    return sequences


async def progress(
    scheduler: Scheduler, requests: tuple[Request, ...]
) -> AsyncIterator[tuple[int, Sequence, int, bool]]:
    """Run requests as one group and yield (index, sequence, tokens so far, finished) token by token.

    Closing the iterator, as a leaving client does, stops the work.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[tuple[Sequence, int, bool]] = asyncio.Queue()

    def notify(sequence: Sequence, tokens: int) -> None:
        loop.call_soon_threadsafe(events.put_nowait, (sequence, tokens, sequence.finish is not None))

    sequences = [
        Sequence(request, scheduler.rng(request.sampling.sampling_seed), notify) for request in requests
    ]
    index = {sequence: position for position, sequence in enumerate(sequences)}
    scheduler.submit(sequences)
    left = len(sequences)
    try:
        while left:
            sequence, tokens, finished = await events.get()
            left -= finished
            yield index[sequence], sequence, tokens, finished
    finally:
        scheduler.cancel(sequences)


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
