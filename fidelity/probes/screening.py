"""The choice of prompts: each is asked once, cold, and passed over where the model is unsure of its answer.

The first arm chooses; the others take its choice. Screened at the longest length: a fault that cold sends
share at a suspect length must not choose the prompts.
"""

from collections.abc import Iterator

from fidelity.events import Event, Sent
from fidelity.observations import Observation
from fidelity.probes.probing import Probing
from fidelity.probes.session import FailedRequestError

PROBE = "resend"
"""The probe whose prompts these are, in the record."""


def choose(at: Probing) -> Iterator[Event | str]:
    """The ids of the prompts to measure, each as soon as it is known, among the events of choosing them."""
    prompts, record = at.prompts, at.record
    for entry in prompts.accepted():
        yield entry.id
    if prompts.settled:
        record.prompts = [entry.id for entry in prompts.taken]
        return
    for entry in prompts.candidates(at.cells):
        screened = next((obs for obs in at.earlier if obs.role == "screen" and obs.prompt == entry.id), None)
        if screened is None:
            try:
                screened = _screen(at, entry.id)
                yield Sent(screened)
            except FailedRequestError as exc:
                yield at.warn(f"{entry.id} could not be screened: {exc}")
        if prompts.admit(entry, screened, at.plan.thresholds.sure):
            yield entry.id
    for entry in prompts.take_unsure():
        record.unsure = True
        yield entry.id
    record.prompts = [entry.id for entry in prompts.taken]
    record.replaced = list(prompts.replaced)
    prompts.settled = True


def settle(at: Probing) -> Iterator[Event]:
    """Make the choice, for a probe that needs sure prompts, if no probe before it has."""
    for what in choose(at):
        if not isinstance(what, str):
            yield what


def _screen(at: Probing, prompt: str) -> Observation:
    cell = at.cells[-1]
    fitted = at.prompts.fit(prompt, cell.length)
    group = f"{prompt}@{cell.length}"
    namespace = at.session.namespace(group, at.session.next_number(), "screen")
    return at.send(
        PROBE,
        "screen",
        at.request(fitted.ids, namespace),
        cell=cell.name,
        kind=cell.kind,
        prompt=prompt,
        group=group,
        expected_cached=0,
        expected_text=fitted.answer,
        keep_ids=True,
    )
