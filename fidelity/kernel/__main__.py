"""`python -m fidelity.kernel WORK ANSWERS`: run the work in one file, write the answers to another."""

import sys
from pathlib import Path

from fidelity.kernel.harness import run
from fidelity.kernel.operator import CannotRunError, operator_for
from fidelity.kernel.work import Failed, line, load


def main(work_file: str, answer_file: str) -> int:
    """0 when all of it was run, 3 when the operator cannot be run here; both are told in the answers."""
    work = load(Path(work_file))
    with Path(answer_file).open("w", encoding="utf-8") as out:
        try:
            for answer in run(work, operator_for(work), Path(answer_file).parent):
                out.write(line(answer))
                out.flush()
        except CannotRunError as exc:
            out.write(line(Failed(str(exc), exc.hint)))
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
