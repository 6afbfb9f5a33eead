"""What evaluations came to, in an event file, whoever has played them."""

from __future__ import annotations

import math
from typing import NamedTuple

from alf.metrics.episode_video import Picture
from alf.metrics.summary_writer import SummaryWriter
from alf.trainers.agent_evaluation import behavior_scalars
from alf.trainers.evaluation_result import Evaluation


class Played(NamedTuple):
    """An evaluation with what is shown beside it, and kept nowhere else.

    Attributes:
      result: what it came to.
      tells_success: whether its success rate means something.
      picture: of its first episode, where the environment has pictures.
    """

    result: Evaluation
    tells_success: bool
    picture: Picture | None


class EvaluationLog:
    """Writes evaluations under a directory of their own."""

    def __init__(self, log_dir: str) -> None:
        """Creates it.

        Args:
          log_dir: directory of the event file, which is created at the first write.
        """
        self._writer = SummaryWriter(log_dir)

    def write(self, played: Played) -> None:
        """Writes `Metrics/AverageReturn`, `/AverageEpisodeLength` and `/SuccessRate`; nothing without an episode.

        Where rewards are shaped, `Metrics/AverageShapedReturn` stands beside the raw one. With several agents there are
        the same numbers as `Metrics/<behavior>/...`.
        """
        result = played.result
        if not result.episodes:
            return
        scalars = {
            "Metrics/AverageReturn": result.average_return,
            "Metrics/AverageEpisodeLength": result.average_length,
        }
        if played.tells_success and not math.isnan(result.success_rate):
            scalars["Metrics/SuccessRate"] = result.success_rate
        if result.average_shaped_return is not None:
            scalars["Metrics/AverageShapedReturn"] = result.average_shaped_return
        scalars |= behavior_scalars(result.behaviors)
        self._writer.scalars(scalars, result.step)
        if played.picture is not None:
            played.picture.write(self._writer, result.step)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()
