"""Plays a trained policy, and records it.

    python -m alf.bin.play --root_dir=runs/cart_pole --num_episodes=3 --record_file=cart_pole.mp4
    python -m alf.bin.play --root_dir=runs/cart_pole --checkpoint=best
    python -m alf.bin.play --root_dir=runs/cart_pole --follow
    python -m alf.bin.play --root_dir=runs/pursuit --behavior_from=runner=runs/other:best

Uses the configuration and a checkpoint of the run in --root_dir, the newest by default. With --follow it plays again
each time that training, which may go on meanwhile, has written a newer one. All behaviors of a run play together;
--behavior_from lets one of them act by the weights of another checkpoint. Needs no display, and writes nothing into
--root_dir. Exit code 2: the command line, the configuration or the checkpoint is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from alf.bin import behavior_flag, command_line, epsilon_flag, policy_flags, trained
from alf.bin.episodes import MAX_STEPS, EpisodesError, always_cut, never_ends
from alf.bin.video import Video, VideoError, marked

if TYPE_CHECKING:
    from alf.trainers.agent_evaluation import AgentRecorder, BehaviorEvaluation

_FOLLOW = flags.DEFINE_bool("follow", False, "Play again each time a newer checkpoint appears, until Ctrl-C.")
_SLEEP = flags.DEFINE_float("sleep_time_per_step", 0.01, "Seconds to wait after each step.", lower_bound=0.0)
flags.adopt_module_key_flags(command_line)
flags.adopt_module_key_flags(policy_flags)
flags.adopt_module_key_flags(behavior_flag)
flags.adopt_module_key_flags(epsilon_flag)


class Player:
    """Plays episodes of one algorithm in one environment, whose functions are traced once."""

    def __init__(
        self,
        env: Any,
        algorithm: Any,
        epsilon_greedy: float = 0.1,
        sleep_time_per_step: float = 0.01,
        random_seed: int | None = None,
    ) -> None:
        """Creates the player.

        Args:
          env: batched environment of one row, which stays the caller's.
          algorithm: acts by its present weights.
          epsilon_greedy: chance of a sampled instead of the most likely action.
          sleep_time_per_step: seconds to wait after each step.
          random_seed: of the samples.
        """
        import numpy as np

        from alf.drivers.policy_driver import PolicyDriver
        from alf.metrics.metrics import AverageReturnMetric

        self._env = env
        self._agents: AgentRecorder | None = None
        self._all_rows = np.ones(env.batch_size, bool)
        self._video: Video | None = None
        self._returns = AverageReturnMetric(1, env.batch_size, buffer_size=1)
        observers: list[Callable[..., None]] = [self._record]
        if sleep_time_per_step:
            observers.append(lambda _: time.sleep(sleep_time_per_step))
        self._driver = PolicyDriver(
            env,
            algorithm,
            observers=observers,
            metrics=[self._returns],
            epsilon_greedy=epsilon_greedy,
            random_seed=random_seed,
        )

    def _record(self, trajectory: Any) -> None:
        if self._video is not None:
            self._video.add(trajectory)
        if self._agents is not None:
            self._agents.take(trajectory, self._all_rows)

    def _play_whole(self, episode: int, num_episodes: int) -> Sequence[BehaviorEvaluation]:
        """As `_play_one`; an episode that a restart or a value that is not finite has cut is played again."""
        from alf.drivers.base import MOST_CUTS, cuts

        for _ in range(MOST_CUTS):
            before = cuts(self._env)
            behaviors = self._play_one()
            if cuts(self._env) == before:
                return behaviors
        raise EpisodesError(always_cut(episode, num_episodes))

    def _play_one(self) -> Sequence[BehaviorEvaluation]:
        """Plays an episode; what it came to for each behavior, where several agents act."""
        from alf.trainers.agent_evaluation import recorder_of

        agents = self._agents = recorder_of(self._env.observation_spec(), self._env.batch_size, {})
        ended = self._driver.get_metrics()[0]
        before = int(ended.result())
        time_step = self._driver.run_episodes(1, MAX_STEPS)
        if int(ended.result()) == before:
            raise EpisodesError(never_ends(MAX_STEPS))
        if agents is None:
            return ()
        agents.take(time_step, self._all_rows)
        return agents.result()

    def play(self, num_episodes: int, record_file: str | None = None) -> list[float]:
        """Plays whole episodes and logs their returns, with several agents those of each behavior too.

        Args:
          num_episodes: how many.
          record_file: .mp4 or .gif file of all of them.

        Returns:
          the return of each episode.

        Raises:
          EpisodesError: an episode does not end, or each is cut.
          VideoError: `record_file` is given and the environment has no pictures.
        """
        import numpy as np

        from alf.trainers.agent_evaluation import told

        self._video = Video(self._env, record_file) if record_file else None
        returns = []
        try:
            for episode in range(num_episodes):
                behaviors = self._play_whole(episode, num_episodes)
                returns.append(float(self._returns.result()))
                logging.info("Episode %d: return %.3f", episode + 1, returns[-1])
                for b in behaviors:
                    logging.info("  %s: %s", b.name, told(b))
        finally:
            if self._video is not None:
                self._video.close()
        logging.info("Mean return of %d episodes: %.3f ± %.3f", num_episodes, np.mean(returns), np.std(returns))
        if record_file:
            logging.info("Video: %s", record_file)
        return returns


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
    behavior_from: Sequence[str] = (),
) -> list[float]:
    """Restores a checkpoint and plays it.

    Args:
      root_dir: of the run.
      env: batched environment of one row; with pictures where `record_file` is given.
      algorithm: as trained.
      checkpoint_name: as `trained.restore` takes it; the newest by default.
      epsilon_greedy: chance of a sampled instead of the most likely action.
      num_episodes: whole episodes to play.
      sleep_time_per_step: seconds to wait after each step.
      record_file: .mp4 or .gif file of all episodes.
      random_seed: of the samples.
      behavior_from: as `trained.replace_behaviors` takes it.

    Returns:
      the return of each episode.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, or does not fit the algorithm.
      EpisodesError: an episode does not end.
      UsageError: there is no checkpoint at all, or no such behavior.
      VideoError: the environment has no pictures.
    """
    restored = trained.restore(root_dir, algorithm, checkpoint_name or "latest")
    trained.replace_behaviors(algorithm, behavior_from)
    logging.info("Playing %s.", restored.path)
    player = Player(env, algorithm, epsilon_greedy, sleep_time_per_step, random_seed)
    return player.play(num_episodes, record_file)


def follow(
    root_dir: str,
    algorithm: Any,
    player: Player,
    num_episodes: int = 10,
    record_file: str | None = None,
    max_wait_secs: float = 0.0,
    behavior_from: Sequence[str] = (),
) -> int:
    """Plays the newest checkpoint, and again each time there is a newer one, until the run is finished or Ctrl-C.

    Args:
      root_dir: of the run, which may be training.
      algorithm: as trained.
      player: plays `algorithm`.
      num_episodes: for each checkpoint.
      record_file: videos are written beside it, with the name of the checkpoint in theirs.
      max_wait_secs: the longest wait for a newer checkpoint; 0 sets no limit.
      behavior_from: as `trained.replace_behaviors` takes it.

    Returns:
      how many checkpoints were played.
    """
    last, played = None, 0

    def newer(index: Any) -> Any:
        # A run that was begun anew meanwhile has lower steps, or the same again.
        record = index.latest()
        return record if record is not None and (record.step, record.created) != last else None

    try:
        while (record := trained.wait_for(root_dir, newer, max_wait_secs=max_wait_secs)) is not None:
            last = record.step, record.created
            restored = trained.restore_listed(root_dir, algorithm, record.name)
            if restored is None:
                continue
            trained.replace_behaviors(algorithm, behavior_from)
            logging.info("Playing %s.", restored.path)
            player.play(num_episodes, marked(record_file, restored.name) if record_file else None)
            played += 1
    except KeyboardInterrupt:
        logging.info("Stopped after %d checkpoints.", played)
    return played


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> None:
        root_dir = command_line.root_dir(argv)
        policy_flags.check()
        command_line.finite(_SLEEP, epsilon_flag.EPSILON)
        if not _FOLLOW.value:
            command_line.refuse((policy_flags.MAX_WAIT_SECS,), "only --follow waits")
        which = policy_flags.checkpoint()
        if _FOLLOW.value and which != "latest":
            raise command_line.UsageError(f"--follow plays what is newest: leave --checkpoint={which} out.")
        if not _FOLLOW.value:
            command_line.check_directory(root_dir)
        command_line.set_up()
        command_line.parse_gin(root_dir)
        try:
            _play_by_flags(root_dir, which)
        except (EpisodesError, VideoError) as e:
            raise command_line.UsageError(str(e)) from e

    code = command_line.run(body)
    return 0 if _FOLLOW.value and code == command_line.INTERRUPTED else code


def _play_by_flags(root_dir: str, which: str) -> None:
    seed, episodes = policy_flags.RANDOM_SEED.value, policy_flags.NUM_EPISODES.value
    record_file = policy_flags.RECORD_FILE.value
    env = trained.make_environment(seed, bool(record_file))
    try:
        algorithm = trained.make_algorithm(root_dir, env)
        if not _FOLLOW.value:
            play(
                root_dir,
                env,
                algorithm,
                which,
                epsilon_flag.epsilon_greedy(),
                episodes,
                _SLEEP.value,
                record_file,
                seed,
                behavior_flag.BEHAVIOR_FROM.value,
            )
            return
        player = Player(env, algorithm, epsilon_flag.epsilon_greedy(), _SLEEP.value, seed)
        wait = policy_flags.MAX_WAIT_SECS.value
        others = behavior_flag.BEHAVIOR_FROM.value
        follow(root_dir, algorithm, player, episodes, record_file, max_wait_secs=wait, behavior_from=others)
    finally:
        env.close()


if __name__ == "__main__":
    command_line.start(main)
