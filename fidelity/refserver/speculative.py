"""Speculative decoding: a draft of a few tokens, one forward of the target that verifies it, a roll-back.

A verification computes the last token and the drafts after it, one sequence's as one segment: with 3 drafts
the target's experts see 4 tokens a sequence where plain decoding shows them one, and the draft head sees one
a step. Each row chooses its token exactly as plain decoding would, at its temperature too, and the drafts are
kept for as long as they are the tokens chosen. For a draft that is a single token and no distribution this is
what rejection sampling comes to (Leviathan, Kalman and Matias, arXiv:2211.17192): the draft is kept with the
target's probability of it. What was computed past the last token kept is dropped: keys and values are cut
off, and the recurrent state is the one after that token, as no state can be computed backwards.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from .draft import DraftHead
from .model import Result, Segment, State
from .sequence import Decode, Sequence


def with_drafts(head: DraftHead, batch: list[Sequence], segments: list[Segment], steps: int) -> list[Segment]:
    """The one-token segments of a decode, each followed by `steps` drafts; the batch is drafted together."""
    hidden = np.stack([sequence.hidden for sequence in batch if sequence.hidden is not None])
    drafts = head.propose(hidden, np.concatenate([segment.ids for segment in segments]), steps)
    return [
        replace(
            segment,
            ids=np.concatenate([segment.ids, own]),
            logits_from=segment.state.length,
            every_state=True,
        )
        for segment, own in zip(segments, drafts, strict=True)
    ]


def take(
    sequence: Sequence, segment: Segment, result: Result, grid: int, decode: Decode, eos: frozenset[int]
) -> None:
    """Give a sequence the tokens that a decode forward decided, and the state it goes on from.

    `segment` holds its last token and any drafts, `result` a row of logits for each; `grid` is in tokens
    between two positions whose state is kept.
    """
    drafts = segment.ids[1:].tolist()
    kept = 0  # tokens added
    for row, draft in zip(result.logits, [*drafts, None], strict=True):
        sequence.advance(row, decode, eos)
        kept += 1
        if sequence.finish is not None or sequence.output_ids[-1] != draft:
            break
    if drafts:
        sequence.accepted.append(kept - 1)
        sequence.proposed += len(drafts)
    sequence.hidden = result.hidden[kept - 1]
    sequence.state = _after(segment, result, kept)
    for tokens in range(1, kept + 1):
        if (segment.state.length + tokens) % grid == 0:
            state = _after(segment, result, tokens)
            sequence.tracked = (state.length, state.recurrent)


def spec_fields(sequence: Sequence) -> dict[str, Any]:
    """sglang's `spec_*` fields of a finished reply; empty where nothing was verified.

    Rate: drafts kept of those proposed; length: tokens of the answer a verification, the first included.
    """
    count = len(sequence.accepted)
    if count == 0:
        return {}
    kept = Counter(sequence.accepted)
    return {
        "spec_accept_rate": sum(sequence.accepted) / sequence.proposed,
        "spec_accept_length": len(sequence.output_ids) / count,
        "spec_num_correct_drafts": sum(sequence.accepted),
        "spec_num_proposed_drafts": sequence.proposed,
        "spec_verify_ct": count,
        "spec_correct_drafts_histogram": [kept[drafts] for drafts in range(max(kept) + 1)],
    }


def _after(segment: Segment, result: Result, tokens: int) -> State:
    """The state after the first `tokens` of a segment."""
    if tokens == len(segment.ids):
        return result.state
    length = segment.state.length + tokens
    return State(
        length,
        result.states[tokens - 1],
        tuple(keys[:length] for keys in result.state.keys),
        tuple(values[:length] for values in result.state.values),
    )
