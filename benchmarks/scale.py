"""How far one learner goes: at how many workers each part binds, by the constants that `benchmarks.workers` measured.

    python -m benchmarks.scale

docs/scale.md shows these tables.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from benchmarks import _machine, _scale_model

# Results of `benchmarks.workers`, one for each workload that was measured.
WORKLOADS = {"large segments": "workers"}
WORKERS = (1, 2, 4, 8, 16, 32, 64)
# T, B, bytes of an observation and number of actions.
SIZES = {"large segments": (64, 256, 16, 2), "small segments": (32, 64, 16, 2), "pictures": (32, 16, 84 * 84 * 4, 6)}
# Of a machine's memory Ray takes so much for its object store.
STORE_SHARE = 0.3


def costs_of(measured: dict[str, Any]) -> _scale_model.Costs:
    """The costs of a result, with `sharing` from its run without workers."""
    costs = _scale_model.Costs(**measured["costs"])
    alone = next(row["steps_per_s"] for row in measured["rows"] if not row["workers"])
    sharing = _scale_model.sharing(costs, alone, measured["machine"]["processors"])
    return dataclasses.replace(costs, sharing=sharing)


def sizes(store: float) -> list[dict[str, Any]]:
    """What a segment of each workload weighs, and what the network and an object store of so many bytes can take of them."""
    rows = []
    for name, (length, batch, *seen) in SIZES.items():
        size = _scale_model.segment_bytes(length, batch, *seen)
        costs = _scale_model.Costs(length * batch, 1, 0.0, 0.0, 0.0, 0.0, segment_bytes=size)
        rows.append(
            {
                "workload": name,
                "T": length,
                "B": batch,
                "a segment, kB": round(size / 1e3),
                "bytes a step": round(size / costs.steps),
                "10 Gbit/s carry, steps/s": costs.link_bytes_per_sec / size * costs.steps,
                "object store of a worker, MB": _scale_model.store_bytes(costs, 1) / 1e6,
                "workers that fill the store": int(_scale_model.store_workers(costs, store)),
            }
        )
    return rows


def limits(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """What each part can take, and how many workers that is."""
    costs = costs_of(measured)
    found = _scale_model.limits(costs)
    store = STORE_SHARE * measured["machine"]["memory_gib"] * 2**30
    rows = [
        {"part": part, "env steps/s": rate, "workers": found.workers().get(part)}
        for part, rate in found._asdict().items()
    ]
    return [*rows, {"part": "object store", "env steps/s": None, "workers": _scale_model.store_workers(costs, store)}]


def measured_rows(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """The measured runs."""
    return [
        {
            "workers": row["workers"],
            "env steps/s": row["steps_per_s"],
            "lag, mean": row["lag_mean"],
            "lag, most": row["lag_max"],
        }
        for row in measured["rows"]
    ]


def without_sharing(measured: dict[str, Any]) -> list[float]:
    """By how many percent a simulation is too high in which parts do not get in each other's way."""
    costs, processors = _scale_model.Costs(**measured["costs"]), measured["machine"]["processors"]
    return [
        100.0 * (_scale_model.simulate(costs, row["workers"], processors).steps_per_sec / row["steps_per_s"] - 1.0)
        for row in measured["rows"]
        if row["workers"]
    ]


def compared(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """The measured runs with workers, all on the learner's machine, and what the simulation makes of them."""
    costs = costs_of(measured)
    rows = []
    for row in measured["rows"]:
        if row["workers"]:
            outcome = _scale_model.simulate(costs, row["workers"], measured["machine"]["processors"])
            rows.append(
                {
                    "workers": row["workers"],
                    "measured, env steps/s": row["steps_per_s"],
                    "simulated": outcome.steps_per_sec,
                    "error, %": 100.0 * (outcome.steps_per_sec / row["steps_per_s"] - 1.0),
                    "lag, mean, measured": row["lag_mean"],
                    "lag, simulated": outcome.lag_mean,
                }
            )
    return rows


def apart(measured: dict[str, Any], workers: int) -> dict[str, Any]:
    """A simulated run of workers, each on a machine of its own."""
    costs = costs_of(measured)
    outcome = _scale_model.simulate(costs, workers, measured["machine"]["processors"], machines=workers)
    return {
        "workers, each on a machine of its own": workers,
        "env steps/s": outcome.steps_per_sec,
        "learner busy": outcome.learner_busy,
        "lag, mean": outcome.lag_mean,
        "lag, most": outcome.lag_max,
        "object store, MB": _scale_model.store_bytes(costs, workers) / 1e6,
    }


def measurements() -> dict[str, dict[str, Any]]:
    """The results of `benchmarks.workers` by the names of the workloads."""
    return {name: json.loads((_machine.RESULTS / f"{result}.json").read_text()) for name, result in WORKLOADS.items()}


def main() -> None:
    """Prints the tables of each workload, and keeps them."""
    head = _machine.announce("how far one learner goes")
    found: dict[str, Any] = {}
    memory_gib = 0.0
    for name, measured in measurements().items():
        tables = {
            "measured": measured_rows(measured),
            "limits": limits(measured),
            "compared": compared(measured),
            "apart": [apart(measured, workers) for workers in WORKERS],
        }
        print(f"\n## {name}: {measured['title']}")
        for table in tables.values():
            print(f"\n{_machine.table(table)}")
        costs = dataclasses.asdict(costs_of(measured))
        without = without_sharing(measured)
        found[name] = {"title": measured["title"], "costs": costs, "without sharing": without, **tables}
        memory_gib = measured["machine"]["memory_gib"]
    print()
    error = max(abs(row["error, %"]) for tables in found.values() for row in tables["compared"])
    store = STORE_SHARE * memory_gib * 2**30
    _machine.save("scale", head, sizes(store), workloads=found, largest_error_percent=error, store_bytes=store)


if __name__ == "__main__":
    main()
