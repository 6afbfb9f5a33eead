"""Trains every example that states a return once and draws its learning curve into docs/img.

python -m benchmarks.curves [--only NAME]
"""

from __future__ import annotations

import argparse

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks import _machine, examples


def main() -> None:
    """Draws all curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="draw the curve of this example alone")
    flags = parser.parse_args()
    _machine.announce("learning curves of the examples")
    folder = _machine.ROOT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    for name, stated in examples.runnable().items():
        if stated is None or flags.only not in (None, name):
            continue
        _machine.progress(name)
        points = examples.run(name, ["TrainerConfig.random_seed=1"], over=stated.over)["points"][
            "Metrics_vs_EnvironmentSteps/AverageReturn"
        ]
        figure, axes = plt.subplots(figsize=(5, 3))
        axes.plot([p.step for p in points], [p.value for p in points])
        axes.axhline(stated.reached, linestyle="--", linewidth=1, color="grey")
        axes.set(xlabel="environment steps", ylabel="average return", title=name)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", dpi=80)
        plt.close(figure)


if __name__ == "__main__":
    main()
