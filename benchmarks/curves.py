"""Trains every example once and draws its learning curve into docs/img.

python -m benchmarks.curves
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks import _machine, examples


def main() -> None:
    """Draws all curves."""
    _machine.announce("learning curves of the examples")
    folder = _machine.ROOT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    for name, stated in examples.runnable().items():
        _machine.progress(name)
        points = examples.run(name, ["TrainerConfig.random_seed=1"])["points"][
            "Metrics_vs_EnvironmentSteps/AverageReturn"
        ]
        figure, axes = plt.subplots(figsize=(5, 3))
        axes.plot([p.step for p in points], [p.value for p in points])
        if stated is not None:
            axes.axhline(stated.reached, linestyle="--", linewidth=1, color="grey")
        axes.set(xlabel="environment steps", ylabel="average return", title=name)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", dpi=80)
        plt.close(figure)


if __name__ == "__main__":
    main()
