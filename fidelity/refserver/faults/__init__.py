"""Named faults of the embedded engine: public kinds of silent corruption, each in the mechanism that has it.

A fault damages what its mechanism damages in production (a state, a page, a row, a count) and the answer
follows from that by the same arithmetic as every other answer. Nothing imported here needs numpy.
"""

from .kinds import KINDS, Key, Kind
from .spec import Fault, parse

__all__ = ["KINDS", "Fault", "Key", "Kind", "parse"]
