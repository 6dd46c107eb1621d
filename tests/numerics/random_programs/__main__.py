"""Checks of random programs: ``python -m tests.numerics.random_programs --count 1000 --seed 0 -o FILE``.

Programs are drawn by number. All checks of each program run, and one line of JSON a program is written. An
existing file is continued without its seeds. At the end counts of outcomes and of every reason are printed;
``--report`` prints those of a file without a run, ``--show SEED`` prints one program, ``--jobs`` sets the
number of processes.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import tests.sympy_settings  # noqa: F401  (before SymPy itself)
from tests.numerics.random_programs.checks import CHECKS, FAST, FULL, HALF, judge
from tests.numerics.random_programs.language import draw

SECONDS = 300
"""Seconds of the processor after which a program is given up."""


class TooLong(BaseException):
    """Raised if a program takes too long; no check catches it."""


def _stop(*_: Any) -> None:
    raise TooLong


EFFORTS = {"full": FULL, "half": HALF, "fast": FAST}


def run(
    seed: int, names: Sequence[str] = tuple(CHECKS), seconds: float = SECONDS, effort: str = "full"
) -> dict[str, Any]:
    """Return the line of one seed."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return judge(draw(seed), tuple(names), EFFORTS[effort]).as_json()
    except TooLong:
        return {
            "seed": seed,
            "outcome": "failed",
            "checks": {"time": f"failed: more than {seconds} s"},
            "time": seconds,
        }
    except Exception as error:  # of the generator itself
        return {"seed": seed, "outcome": "failed", "checks": {"draw": f"failed: {error!r}"}, "time": 0}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def reason(text: str) -> str:
    """Return an outcome without names and numbers, so that equal reasons are counted together."""
    text = re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", text)
    return re.sub(r"\s+", " ", text)[:130]


def report(lines: Iterable[dict[str, Any]]) -> str:
    """Return counts of outcomes, of each check, and of each reason, as a table."""
    found = list(lines)
    outcomes = Counter(x["outcome"] for x in found)
    total = max(len(found), 1)
    text = [f"{len(found)} programs, {sum(x['time'] for x in found) / total:.1f} s each"]
    text += [f"{n:6} {100 * n / total:5.1f} %  {k}" for k, n in outcomes.most_common()]
    reasons = Counter(
        (check, reason(said))
        for x in found
        for check, said in x["checks"].items()
        if not said.startswith("ok")
    )
    where = {(check, reason(said)): x["seed"] for x in reversed(found) for check, said in x["checks"].items()}
    text += [
        f"{n:6}  {check:9} {why}  (seed {where[check, why]})" for (check, why), n in reasons.most_common()
    ]
    return "\n".join(text)


def main(arguments: Sequence[str]) -> int:
    """Run programs; the status is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.numerics.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--checks", default=",".join(CHECKS))
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--effort", choices=EFFORTS, default="full")
    parser.add_argument("--show", type=int)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=None)
    given = parser.parse_args(arguments)
    if given.show is not None:
        print(draw(given.show))
        return 0
    known: dict[int, dict[str, Any]] = {}
    if given.output is not None and given.output.exists():
        with suppress(json.JSONDecodeError):
            for line in given.output.read_text().splitlines():
                known[json.loads(line)["seed"]] = json.loads(line)
    seeds = [] if given.report else [s for s in range(given.seed, given.seed + given.count) if s not in known]
    names = given.checks.split(",")
    with ProcessPoolExecutor(given.jobs) as pool:
        waiting = [pool.submit(run, s, names, given.seconds, given.effort) for s in seeds]
        for x in waiting:
            line = x.result()
            known[line["seed"]] = line
            if given.output is not None:
                with given.output.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            else:
                print(json.dumps(line), flush=True)
    print(report(known.values()))
    return int(any(x["outcome"] == "failed" for x in known.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
