"""Plays a trained policy, and records it.

    python -m alf.bin.play --root_dir=runs/cart_pole --num_episodes=3 --record_file=cart_pole.mp4

Uses the configuration and the newest checkpoint of the run in --root_dir. Needs no display. Exit code 2: the command
line, the configuration or the checkpoint is wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags, logging

from alf.bin import command_line

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint_name", None, "Checkpoint to play, such as ckpt-100; the newest by default."
)
_EPSILON = flags.DEFINE_float(
    "epsilon_greedy", 0.1, "Chance of a sampled instead of the most likely action.", lower_bound=0.0, upper_bound=1.0
)
_SEED = flags.DEFINE_integer("random_seed", None, "Seed of environment and samples.")
_EPISODES = flags.DEFINE_integer("num_episodes", 10, "How many episodes to play.", lower_bound=1)
_SLEEP = flags.DEFINE_float("sleep_time_per_step", 0.01, "Seconds to wait after each step.", lower_bound=0.0)
_RECORD = flags.DEFINE_string("record_file", None, "Video file to write: .mp4, or .gif.")

_FPS = 30


class PlayError(RuntimeError):
    """Something that was asked for cannot be played."""


def play(
    root_dir: str,
    env: Any,
    algorithm: Any,
    checkpoint_name: str | None = None,
    epsilon_greedy: float = 0.1,
    num_episodes: int = 10,
    sleep_time_per_step: float = 0.01,
    record_file: str | None = None,
    random_seed: int | None = None,
) -> list[float]:
    """Restores a checkpoint and plays it.

    Args:
      root_dir: of the run.
      env: batched environment of one row; with pictures where `record_file` is given.
      algorithm: as trained.
      checkpoint_name: such as "ckpt-100"; the newest by default.
      epsilon_greedy: chance of a sampled instead of the most likely action.
      num_episodes: whole episodes to play.
      sleep_time_per_step: seconds to wait after each step.
      record_file: .mp4 or .gif file of all episodes.
      random_seed: of the samples.

    Returns:
      the return of each episode.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or does not fit the algorithm.
      PlayError: there is no checkpoint at all, or the environment has no pictures.
    """
    from alf.drivers.policy_driver import PolicyDriver
    from alf.metrics.metrics import AverageReturnMetric
    from alf.trainers.checkpointing import Checkpointer
    from alf.trainers.policy_trainer import CHECKPOINT_DIR

    algorithm.acting_variables()
    checkpointer = Checkpointer(os.path.join(root_dir, CHECKPOINT_DIR), {"algorithm": algorithm}, max_to_keep=1)
    path = checkpointer.restore(checkpoint_name)
    if path is None:
        raise PlayError(f"There is no checkpoint in {checkpointer.directory}: train first, with the same --root_dir.")
    logging.info("Playing %s.", path)
    returns = AverageReturnMetric(1, env.batch_size, buffer_size=num_episodes)
    observers: list[Callable[..., None]] = []
    video = _Video(env, record_file) if record_file else None
    if video is not None:
        observers.append(video.add)
    if sleep_time_per_step:
        observers.append(lambda _: time.sleep(sleep_time_per_step))
    driver = PolicyDriver(
        env, algorithm, observers=observers, metrics=[returns], epsilon_greedy=epsilon_greedy, random_seed=random_seed
    )
    try:
        for episode in range(num_episodes):
            driver.run_episodes(1)
            logging.info("Episode %d: return %.3f", episode + 1, returns.values()[-1])
    finally:
        if video is not None:
            video.close()
    logging.info("Mean return of %d episodes: %.3f ± %.3f", num_episodes, returns.result(), returns.std())
    if record_file:
        logging.info("Video: %s", record_file)
    return [float(r) for r in returns.values()]


class _Video:
    """Pictures of row 0, one a step, encoded by the suffix of a file as they come."""

    def __init__(self, env: Any, path: str) -> None:
        import imageio.v2 as imageio

        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        if path.lower().endswith(".gif"):
            self._writer = imageio.get_writer(path, mode="I", duration=1000 / _FPS, loop=0)
        else:
            self._writer = imageio.get_writer(path, mode="I", fps=_FPS, macro_block_size=1)
        self._env = env

    def add(self, trajectory: Any) -> None:
        """Takes the picture after a step."""
        del trajectory
        try:
            frame = self._env.render()
        except NotImplementedError as e:
            raise PlayError(
                f"--record_file: {e} Leave the flag out, or use an environment that renders rgb_array."
            ) from e
        if frame is None:
            raise PlayError("--record_file: the environment renders nothing; it needs render_mode='rgb_array'.")
        self._writer.append_data(frame)

    def close(self) -> None:
        """Completes the file."""
        self._writer.close()


def make_environment(seed: int | None, pictures: bool) -> Any:
    """One row of the run's environment, by gin; with `pictures`, so that `render` works without a display."""
    from alf.environments import suite_gym
    from alf.environments.utils import create_environment
    from alf.utils.gin_utils import bind

    if not pictures:
        return create_environment(nonparallel=True, seed=seed)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("MUJOCO_GL", "egl")
    bind(suite_gym.load, "render_mode", "rgb_array")
    try:
        return create_environment(nonparallel=True, seed=seed, vectorization="auto")
    except ValueError as e:
        raise PlayError(f"--record_file: the environment cannot be made with pictures. {e}") from e


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    try:
        root_dir = command_line.root_dir(argv)
        if _RECORD.value and not _RECORD.value.lower().endswith((".mp4", ".gif")):
            raise command_line.UsageError(f"--record_file={_RECORD.value} must end in .mp4 or .gif.")
    except command_line.UsageError as e:
        logging.error("%s", e)
        return 2
    command_line.set_up()
    from alf.trainers.checkpointing import CheckpointError
    from alf.utils.gin_utils import GinConfigError

    try:
        command_line.parse_gin(root_dir)
        _play_by_flags(root_dir)
    except (command_line.UsageError, GinConfigError, CheckpointError, PlayError) as e:
        logging.error("%s", e)
        return 2
    return 0


def _play_by_flags(root_dir: str) -> None:
    from alf.trainers.building import build_algorithm
    from alf.trainers.config import TrainerConfig

    env = make_environment(_SEED.value, bool(_RECORD.value))
    try:
        algorithm = build_algorithm(TrainerConfig(root_dir=root_dir), env)
        play(
            root_dir,
            env,
            algorithm,
            _CHECKPOINT.value,
            _EPSILON.value,
            _EPISODES.value,
            _SLEEP.value,
            _RECORD.value,
            _SEED.value,
        )
    finally:
        env.close()


if __name__ == "__main__":
    app.run(main)
