"""Two threads must not be slower than one: OpenMP's spinning against the setting that the command uses.

Each line is a process of its own, since the setting is read when torch loads.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from .common import Claim, options, report

WORK = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
weights = [torch.randn(1536, 576) for _ in range(60)]
rows = torch.randn(16, 576)
best = float("inf")
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    for weight in weights:
        torch.nn.functional.linear(rows, weight)
    best = min(best, time.perf_counter() - start)
print(best)
"""


def run_s(threads: int, policy: str | None, repeats: int) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if policy is not None:
        environment["OMP_WAIT_POLICY"] = policy
    command = [sys.executable, "-c", WORK, str(threads), str(repeats)]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    repeats = 3 if args.quick else 40
    one_s, spinning_s, passive_s = run_s(1, "PASSIVE", repeats), run_s(2, None, repeats), run_s(2, "PASSIVE", repeats)
    claims = [Claim("two threads with OMP_WAIT_POLICY=PASSIVE, speed vs one thread", one_s / passive_s, 0.9)]
    figures = {
        "one thread, ms": one_s * 1e3,
        "two threads, default spinning, ms": spinning_s * 1e3,
        "two threads, OMP_WAIT_POLICY=PASSIVE, ms": passive_s * 1e3,
    }
    return report(args, "Threads", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
