"""What docs/scale.md takes from the results: tables, and sentences with numbers in them."""

from __future__ import annotations

from typing import Any

from benchmarks import _machine


def blocks(result: dict[str, Any]) -> dict[str, str]:
    """The parts of the page that hold numbers, by name.

    Args:
      result: of `benchmarks.scale`, as results/scale.json has it.
    """
    found = result["workloads"]["large segments"]
    costs = found["costs"]
    tables = {name: _machine.table(found[name]) for name in ("measured", "limits", "compared", "apart")}
    return {
        **tables,
        "costs": _machine.table(_costs(costs)),
        "sizes": _machine.table(result["rows"]),
        "binding": _binding(found["limits"]),
        "error": _error(result, found["compared"]),
        "sharing": _sharing(costs, found["measured"][0]["env steps/s"], found["without sharing"]),
        "store": f"a machine like the measured one, {result['store_bytes'] / 1e9:.1f} GB",
        "pictures": _pictures(result["rows"][-1]),
    }


def _costs(costs: dict[str, float]) -> list[dict[str, str]]:
    def row(what: str, value: str) -> dict[str, str]:
        return {"what": what, "cost": value}

    return [
        row("a worker collects a segment", f"{1e3 * costs['collect_secs']:.0f} ms of a processor"),
        row("and hands it over", f"{1e3 * costs['send_secs']:.0f} ms"),
        row("the learner's process takes it in", f"{1e3 * costs['unpack_secs']:.0f} ms"),
        row(
            f"the learner trains on {costs['queue']:.0f} of them, and publishes",
            f"{1e3 * costs['learn_secs']:.0f} ms, {costs['learn_processors']:.1f} processors busy",
        ),
        row("a segment", f"{costs['segment_bytes'] / 1e3:,.0f} kB"),
        row("the weights", f"{costs['weights_bytes'] / 1e3:,.0f} kB"),
    ]


def _binding(limits: list[dict[str, Any]]) -> str:
    at = {row["part"]: row["workers"] for row in limits}
    return (
        f"The learner binds at {at['learner']:.1f} workers, the unpacking in its process at {at['unpacking']:.1f}, the "
        f"network at {at['link']:.0f}, the object store at {at['object store']:,.0f}."
    )


def _error(result: dict[str, Any], compared: list[dict[str, Any]]) -> str:
    factors = [row["lag, simulated"] / row["lag, mean, measured"] for row in compared]
    return (
        f"The speed is within {result['largest_error_percent']:.0f} % of what was measured; the lag comes out too large, by a "
        f"factor of {min(factors):.1f} to {max(factors):.1f}"
    )


def _sharing(costs: dict[str, float], alone: float, without: list[float]) -> str:
    needed = costs["queue"] * costs["collect_secs"] + costs["learn_secs"] * costs["learn_processors"]
    passed = needed / costs["sharing"]
    return (
        f"a batch needs {1e3 * needed:.0f} ms of processor time by the costs of its parts, and at {alone / 1e3:.0f}k steps/s "
        f"{1e3 * passed:.0f} ms went by, so that is {100 * costs['sharing']:.0f} %. Without this constant the same simulation is "
        f"{min(without):.0f} to {max(without):.0f} % too high"
    )


def _pictures(row: dict[str, Any]) -> str:
    rate = row["10 Gbit/s carry, steps/s"]
    return f"more than {rate / 1e3:.0f}k steps/s of them, {rate / 1e3:.0f} workers of 1000 steps/s each"
