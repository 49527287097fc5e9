"""What a send of a case should answer, and what it did, on one line of plain text."""

import math
from collections.abc import Sequence

import numpy as np

from fidelity.compare import compare_first_token
from fidelity.engines.speculation import acceptance
from fidelity.observations import Observation
from fidelity.report.words import brief_nats, counted, nats, quoted, readable
from fidelity.reproduce.rules import apart
from fidelity.scoring import score

_TEXT = 40
"""Characters of an answer that are shown."""

_TOP = 3
"""Logprobs of a reference's answer that are shown."""


def title(step: Sequence[Observation]) -> str:
    """`hit, 193 tokens`; of several rows, how many."""
    first = step[0]
    what = _NAMES.get(first.role, first.role)
    if len(step) > 1:
        return f"{what}: one request of {len(step)} rows"
    return f"{what}, {first.length} tokens" + (f" ({first.prompt})" if first.prompt else "")


_NAMES = {
    "cold": "cold",
    "cold2": "cold again, in another namespace",
    "seed": "seed (fills the cache)",
    "hit": "hit",
    "ragged-hit": "hit on what the fill kept",
    "row": "batch",
    "fill": "fill",
    "decode": "decode",
    "sample": "decode at temperature 1",
    "rescore": "clean prefill of prompt and answer",
    "rescore2": "clean prefill again",
    "screen": "cold",
}


def expected(
    send: Observation, sends: Sequence[Observation], near_tie: float, trusted: Observation | None = None
) -> str:
    """What a right server answers, which a reference's answer to the same ids tells; empty for a seed."""
    if send.role == "seed":
        return ""
    if trusted is not None:
        return _as_trusted(trusted)
    if send.role == "decode" and any(one.role == "row" for one in sends):
        return "as many tokens a verification as in the batch"
    if send.role in ("decode", "sample"):
        return "logprobs that are numbers, tokens that a clean prefill would choose"
    if send.role.startswith("rescore"):
        return "the same logprobs as when they were generated, but for rounding"
    cached = send.answer.cached_tokens if send.expected_cached is None else send.expected_cached
    said = f"cached_tokens {cached or 0}"
    cold = _cold_of(send, sends)
    if cold is None:
        known = send.expected_text
        return f"{said}; an answer that begins as {quoted(known, _TEXT)} does" if known else said
    return f"{said}; first token as when cold: {_token(cold)}"


def seen(
    send: Observation, sends: Sequence[Observation], near_tie: float, trusted: Observation | None = None
) -> str:
    """What came: the text, what was no number, how far from cold, cached tokens and tail."""
    answer = send.answer
    if answer.error is not None and not answer.text:
        return readable(answer.error, 200)
    said = [] if send.role.startswith("rescore") else [_token(send)]
    if sum(answer.faces.values()):
        total = sum(answer.faces.values())
        said.append(f"NaN: {total} of {answer.values} logprobs ({counted(answer.faces)})")
    cold = _cold_of(send, sends) if trusted is None or send.role == "decode" else trusted
    if cold is not None and send.role != "seed":
        said += _from_cold(send, cold, near_tie)
    if trusted is not None and send.role == "cold":
        said.append(f"logprobs {_logprobs(send)}")
    if send.role.startswith("rescore"):
        said.append(_scored(send, sends))
    told = acceptance(answer)
    if told is not None:
        said.append(f"{told.length:.2f} tokens a verification")
    if answer.cached_tokens is not None and not send.role.startswith("rescore"):
        said.append(f"cached_tokens {answer.cached_tokens}, tail {send.tail_seen}")
    return "; ".join(said)


def _as_trusted(trusted: Observation) -> str:
    """A reference's recorded answer."""
    told = acceptance(trusted.answer)
    if told is not None:
        return f"as the reference: {told.length:.2f} tokens a verification"
    return f"cached_tokens 0; as the reference: {_token(trusted)}; logprobs {_logprobs(trusted)}"


def _logprobs(send: Observation) -> str:
    """The most likely first tokens, in nats."""
    row = send.answer.top[0] if send.answer.top else []
    return ", ".join(f"{token}: {value:.4g}" for token, value in row[:_TOP]) or "(none)"


def _cold_of(send: Observation, sends: Sequence[Observation]) -> Observation | None:
    """The cold answer to the same prompt, of another send."""
    for one in sends:
        if one.role == "cold" and (one.prompt, one.length) == (send.prompt, send.length):
            return one if one.order != send.order else None
    return None


def _token(send: Observation) -> str:
    answer = send.answer
    text = quoted(answer.text, _TEXT) if answer.text is not None else "(no text)"
    if not answer.output_ids:
        return text
    shown = ", ".join(map(str, answer.output_ids[:6]))
    more = ", ..." if len(answer.output_ids) > 6 else ""
    return f"{text} (id {shown}{more})"


def _from_cold(send: Observation, cold: Observation, near_tie: float) -> list[str]:
    agreement = compare_first_token(cold.answer, send.answer, near_tie)
    said = []
    if agreement.kind in ("near-tie", "hard flip", "off-list"):
        least = ">= " if agreement.kind == "off-list" else ""
        said.append(f"{agreement.kind}, regret {least}{nats(agreement.regret)} nat")
    found = apart(cold.answer, send.answer)
    if found is not None and math.isfinite(found.kl_lower):
        jsd = f"{brief_nats(found.jsd_lower)}..{brief_nats(found.jsd_upper)}"
        said.append(f"KL >= {brief_nats(found.kl_lower)} nat, JSD {jsd} nat")
    elif found is not None:
        said.append("KL not defined")
    return said


def _scored(rescore: Observation, sends: Sequence[Observation]) -> str:
    """How the generated tokens before it fare under this clean prefill."""
    for one in sends:
        if one.role in ("decode", "sample", "row") and one.prompt == rescore.prompt:
            found = score(one.answer, rescore.answer)
            if found is None:
                break
            said = [
                f"{int(found.undefined.sum())} of {found.undefined.size} generated logprobs undefined, "
                f"{int(np.isnan(found.clean).sum())} of the prefill's",
                # NaN where one of them is.
                f"mean |delta logprob| {nats(float(np.mean(np.abs(found.delta))))} nat",
                f"largest regret {nats(float(np.max(found.regret)))} nat",
            ]
            bad = found.first_bad()
            return "; ".join([*said, *([] if bad is None else [f"first bad token {bad}"])])
    return "nothing to compare"
