"""Trains every example that states a return and draws its learning curve into docs/img, a line for each seed.

python -m benchmarks.curves [--only NAME] [--seeds 1 2]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks import _events, _machine, examples


def draw(name: str, stated: examples.Stated, curves: Iterable[list[_events.Point]]) -> None:
    """Draws the average returns of some runs of an example against environment steps."""
    figure, axes = plt.subplots(figsize=(5, 3))
    for points in curves:
        axes.plot([p.step for p in points], [p.value for p in points])
    axes.axhline(stated.reached, linestyle="--", linewidth=1, color="grey")
    axes.set(xlabel="environment steps", ylabel="average return", title=name)
    figure.tight_layout()
    folder = _machine.ROOT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Draws all curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="draw the curve of this example alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    flags = parser.parse_args()
    _machine.announce("learning curves of the examples")
    for name, stated in examples.runnable().items():
        if stated is None or flags.only not in (None, name):
            continue
        _machine.progress(name)
        runs = (examples.run(name, [f"TrainerConfig.random_seed={seed}"], over=stated.over) for seed in flags.seeds)
        draw(name, stated, [run["points"]["Metrics_vs_EnvironmentSteps/AverageReturn"] for run in runs])


if __name__ == "__main__":
    main()
