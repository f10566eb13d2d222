"""Measures every claim about the launcher's speed on this machine, and prints one table.

    python -m benchmarks [--short] [NAME ...]

The benchmarks run one after the other, each in its own process. A benchmark that fails is a row of the table with the
reason, and the others still run. Exit status: 0 if all targets were met, 1 if one was missed or a benchmark failed.

`--short` only shows that the benchmarks work, in some minutes. With small sizes and one round its numbers say nothing
about speed, so they are compared with no target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.measure import Result
from benchmarks.suite import BENCHMARKS, Failed, exit_status, measure, results, table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="small sizes and one round, held to no target")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all of them without")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    outcomes: list[Result | Failed] = []
    for name in options.names or BENCHMARKS:
        outcome = measure(name, partial(results, name, options.short))
        outcomes += [outcome] if isinstance(outcome, Failed) else outcome
        if not options.short and not isinstance(outcome, Failed):
            print(*(result.line for result in outcome), sep="\n", file=sys.stderr, flush=True)
    print(table(outcomes, options.short))
    return exit_status(outcomes, options.short)


if __name__ == "__main__":
    sys.exit(main())
