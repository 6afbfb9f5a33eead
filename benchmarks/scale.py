"""How far one learner goes: at how many workers each part binds, by the constants that `benchmarks.workers` measured.

python -m benchmarks.scale
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks import _machine, _scale_model

_WORKERS = (1, 2, 4, 8, 16, 32, 64)
_PROCESSORS = 2


def main() -> None:
    """Prints the limits of each part, the simulated runs, and for the measured runs what the simulation says of them."""
    measured = json.loads((_machine.RESULTS / "workers.json").read_text())
    costs = _scale_model.Costs(**measured["costs"])
    head = _machine.announce("how far one learner goes")
    alone = _scale_model.limits(costs)
    saturated = alone.workers()
    parts = [{"part": n, "env steps/s": r, "workers": saturated.get(n)} for n, r in alone._asdict().items()]
    print(_machine.table(parts))
    here = [
        {
            "workers, all on the learner's machine": row["workers"],
            "measured, env steps/s": row["steps_per_s"],
            "simulated": _scale_model.simulate(costs, row["workers"], _PROCESSORS).steps_per_sec,
        }
        for row in measured["rows"]
        if row["workers"]
    ]
    print(_machine.table(here))
    _machine.save("scale", head, [_run(costs, workers) for workers in _WORKERS], parts=parts, here=here)


def _run(costs: _scale_model.Costs, workers: int) -> dict[str, Any]:
    outcome = _scale_model.simulate(costs, workers, _PROCESSORS, machines=workers)
    return {
        "workers, each on a machine of its own": workers,
        "env steps/s": outcome.steps_per_sec,
        "learner busy": outcome.learner_busy,
        "lag, mean": outcome.lag_mean,
        "lag, most": outcome.lag_max,
        "object store, MB": _scale_model.store_bytes(costs, workers) / 1e6,
    }


if __name__ == "__main__":
    main()
