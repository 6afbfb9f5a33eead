"""Evaluates a trained policy over whole episodes, deterministic and stochastic.

    python -m alf.bin.evaluate --root_dir=runs/cart_pole --checkpoint=best --num_episodes=100 --output=result.json
    python -m alf.bin.evaluate --root_dir=runs/cart_pole --watch --output=evaluations.jsonl
    python -m alf.bin.evaluate --root_dir=runs/pursuit --behavior_from=runner=runs/other:best

Plays exactly --num_episodes episodes with the most likely actions and as many with sampled ones (choose one of the two
with --deterministic or --stochastic), and writes the results as JSON. With --watch it evaluates every checkpoint of the
run, those to come too, until the run is finished or Ctrl-C: an evaluation worker beside training. --behavior_from lets
a behavior act by the weights of another checkpoint, so that others are judged against it. It writes nothing into
--root_dir unless --output says so. Exit code 2: the command line, the configuration or the checkpoint is wrong.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from absl import flags, logging

from alf.bin import behavior_flag, command_line, output_flag, parallel_flag, policy_flags, trained
from alf.bin.episodes import EpisodesError, behavior_summaries, run_episodes, summary
from alf.bin.video import Video, VideoError, marked

_DETERMINISTIC = flags.DEFINE_bool("deterministic", None, "Evaluate the most likely actions.")
_STOCHASTIC = flags.DEFINE_bool(
    "stochastic", None, "Evaluate sampled actions, at random where there is no distribution; by default both."
)
_THRESHOLD = flags.DEFINE_float(
    "success_threshold", None, "An episode with at least this return counts as a success; by default the run's own."
)
_WATCH = flags.DEFINE_bool("watch", False, "Evaluate every checkpoint, and each that training adds.")
_STEPS = flags.DEFINE_integer(
    "max_evaluation_steps", 0, "With --watch: end after the checkpoint at which so many steps are played; 0: no limit."
)
flags.adopt_module_key_flags(command_line)
flags.adopt_module_key_flags(policy_flags)
flags.adopt_module_key_flags(output_flag)
flags.adopt_module_key_flags(parallel_flag)
flags.adopt_module_key_flags(behavior_flag)

# The chance of a sampled action in each way to act.
MODES = {"deterministic": 0.0, "stochastic": 1.0}
FORMAT = 1

# Its step, and when it was written: an ISO 8601 time, None where a file of results does not tell.
Checkpoint = tuple[int, str | None]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to evaluate a checkpoint.

    Attributes:
      num_episodes: in each mode.
      modes: names out of `MODES`.
      batch_size: B, environments stepped together.
      random_seed: of environments and samples, the same for each mode and checkpoint.
      success_threshold: return from which on an episode is a success; by behavior, an agent's episode; None: where the
        environment says so.
      record_file: .mp4 or .gif of the episodes of row 0; with several modes their names are put into its name.
      behavior_from: whose weights behaviors act by, as `trained.replace_behaviors` takes it.
    """

    num_episodes: int
    modes: Sequence[str] = tuple(MODES)
    batch_size: int = 1
    random_seed: int = 0
    success_threshold: float | Mapping[str, float] | None = None
    record_file: str | None = None
    behavior_from: Sequence[str] = ()


def evaluate(plan: Plan, algorithm: Any) -> dict[str, dict[str, Any]]:
    """Plays the present weights in environments made by gin.

    Args:
      plan: what to play.
      algorithm: acts, and learns nothing.

    Returns:
      for each mode what `episodes.summary` tells, and `seconds`; with several agents, `behaviors` has the summary of each.

    Raises:
      EpisodesError: an episode does not end.
      UsageError: the environment cannot be made.
      VideoError: it has no pictures to record.
    """
    return {mode: _evaluate_mode(plan, algorithm, mode) for mode in plan.modes}


def _evaluate_mode(plan: Plan, algorithm: Any, mode: str) -> dict[str, Any]:
    # An environment of its own for each, so that a result depends on nothing but the seed and the weights.
    began = time.monotonic()
    batch_size = min(plan.batch_size, plan.num_episodes)
    env = trained.make_environment(plan.random_seed, bool(plan.record_file), batch_size)
    video = None
    try:
        observers: list[Callable[..., None]] = []
        if plan.record_file:
            path = marked(plan.record_file, mode) if len(plan.modes) > 1 else plan.record_file
            video = Video(env, path)
            observers.append(video.add)
        episodes = run_episodes(
            env,
            algorithm,
            plan.num_episodes,
            MODES[mode],
            plan.random_seed,
            observers,
            plan.success_threshold,
        )
    finally:
        if video is not None:
            video.close()
        env.close()
    result = summary(episodes.returns, episodes.lengths)
    # With thresholds by behavior it is the lowest of theirs.
    rate = episodes.result(0).success_rate
    result["success_rate"] = None if math.isnan(rate) else rate
    behaviors = behavior_summaries(episodes)
    if behaviors:
        result["behaviors"] = behaviors
    return {**result, "steps": episodes.steps, "seconds": round(time.monotonic() - began, 3)}


def report(
    root_dir: str,
    restored: trained.Restored,
    plan: Plan,
    results: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """The JSON result of one checkpoint."""
    from alf.trainers.run_facts import versions

    return {
        "format": FORMAT,
        "root_dir": root_dir,
        "checkpoint": restored.name,
        "step": restored.step,
        "path": restored.path,
        "created": restored.created,
        "random_seed": plan.random_seed,
        "success_threshold": plan.success_threshold,
        "num_parallel_environments": min(plan.batch_size, plan.num_episodes),
        "behavior_from": list(plan.behavior_from),
        "versions": versions(),
        "results": results,
    }


def watch(
    root_dir: str,
    algorithm: Any,
    plan: Plan,
    done: Collection[Checkpoint],
    write: Callable[[dict[str, Any]], None],
    max_wait_secs: float = 0.0,
    max_steps: int = 0,
) -> int:
    """Evaluates every checkpoint, oldest first, and waits for those to come, until the run is finished or Ctrl-C.

    Args:
      root_dir: of the run, which may be training.
      algorithm: as trained.
      plan: how to evaluate.
      done: checkpoints that are left out.
      write: called with the report of each.
      max_wait_secs: the longest wait for one; 0 sets no limit.
      max_steps: environment steps after which it ends, between two checkpoints; 0 sets no limit.

    Returns:
      how many checkpoints were evaluated.
    """
    seen: set[Checkpoint] = set(done)
    evaluated = steps = 0

    def unseen(index: Any) -> Any:
        return next((r for r in index.records() if not {(r.step, r.created), (r.step, None)} & seen), None)

    try:
        while (record := trained.wait_for(root_dir, unseen, max_wait_secs=max_wait_secs)) is not None:
            seen.add((record.step, record.created))
            restored = trained.restore_listed(root_dir, algorithm, record.name)
            if restored is None:
                continue
            trained.replace_behaviors(algorithm, plan.behavior_from)
            named = marked(plan.record_file, restored.name) if plan.record_file else None
            results = evaluate(dataclasses.replace(plan, record_file=named), algorithm)
            write(report(root_dir, restored, plan, results))
            evaluated += 1
            steps += sum(result["steps"] for result in results.values())
            if max_steps and steps >= max_steps:
                logging.info("--max_evaluation_steps=%d is reached.", max_steps)
                break
    except KeyboardInterrupt:
        logging.info("Stopped.")
    logging.info("Evaluated %d checkpoints with %d environment steps.", evaluated, steps)
    return evaluated


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> None:
        root_dir = command_line.root_dir(argv)
        _check_flags()
        if not _WATCH.value:
            command_line.check_directory(root_dir)
        command_line.set_up()
        command_line.parse_gin(root_dir)
        try:
            _evaluate_by_flags(root_dir)
        except (EpisodesError, VideoError) as e:
            raise command_line.UsageError(str(e)) from e

    code = command_line.run(body)
    return 0 if _WATCH.value and code == command_line.INTERRUPTED else code


def _check_flags() -> None:
    policy_flags.check()
    if not _WATCH.value:
        command_line.refuse((policy_flags.MAX_WAIT_SECS,), "only --watch waits")
    command_line.at_least(parallel_flag.PARALLEL, 1)
    command_line.at_least(_STEPS, 0)
    command_line.finite(_THRESHOLD)
    command_line.has_suffix(output_flag.OUTPUT, ".jsonl" if _WATCH.value else ".json")
    if not _modes():
        raise command_line.UsageError("--nodeterministic and --nostochastic leave nothing to evaluate: drop one.")
    if _WATCH.value and policy_flags.checkpoint() != "latest":
        raise command_line.UsageError(
            f"--watch evaluates every checkpoint: leave --checkpoint={policy_flags.checkpoint()} out."
        )
    if _STEPS.value and not _WATCH.value:
        raise command_line.UsageError(f"--max_evaluation_steps={_STEPS.value} is for --watch.")


def _modes() -> list[str]:
    """The modes that are asked for, else those that are not refused."""
    wanted = dict(zip(MODES, (_DETERMINISTIC.value, _STOCHASTIC.value), strict=True))
    return [mode for mode, flag in wanted.items() if flag] or [mode for mode, flag in wanted.items() if flag is None]


def _evaluate_by_flags(root_dir: str) -> None:
    plan = _plan(root_dir)
    algorithm = trained.make_algorithm_alone(root_dir, plan.random_seed)
    if not _WATCH.value:
        restored = trained.restore(root_dir, algorithm, policy_flags.checkpoint())
        trained.replace_behaviors(algorithm, plan.behavior_from)
        _write(report(root_dir, restored, plan, evaluate(plan, algorithm)))
        return
    output = output_flag.OUTPUT.value
    done = _evaluated(output, root_dir, plan) if output else set()
    if done:
        logging.info("%d checkpoints are in %s already.", len(done), output)
    wait = policy_flags.MAX_WAIT_SECS.value
    watch(root_dir, algorithm, plan, done, _write, max_wait_secs=wait, max_steps=_STEPS.value)


def _evaluated(output: str, root_dir: str, plan: Plan) -> set[Checkpoint]:
    """The checkpoints of a run for which a file of results, of any runs and plans, has all that this plan asks for.

    A run that took the place of another in its directory writes other checkpoints at the same steps.
    """
    directory = os.path.abspath(root_dir)
    mine = (line for line in output_flag.read_lines(output) if os.path.abspath(str(line.get("root_dir"))) == directory)
    answers = (line for line in mine if _is_asked_for(line, plan))
    return {(step, line.get("created")) for line in answers if isinstance(step := line.get("step"), int)}


def _is_asked_for(line: Mapping[str, Any], plan: Plan) -> bool:
    """Whether a result has the modes, episodes and policies of a plan, and its measure of success."""
    results = line.get("results")
    found = results if isinstance(results, Mapping) else {}
    numbers = [found.get(mode) for mode in plan.modes]
    played = all(isinstance(one, Mapping) and one.get("episodes") == plan.num_episodes for one in numbers)
    same = line.get("success_threshold") == plan.success_threshold
    return played and same and line.get("behavior_from", []) == list(plan.behavior_from)


def _plan(root_dir: str) -> Plan:
    import numpy as np

    from alf.trainers.config import TrainerConfig

    threshold = _THRESHOLD.value
    if threshold is None:
        with command_line.told_as_usage():
            threshold = TrainerConfig(root_dir=root_dir).reward_success_threshold
    seed = policy_flags.RANDOM_SEED.value
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        logging.info("random_seed is not set; this evaluation uses %d.", seed)
    episodes, record_file = policy_flags.NUM_EPISODES.value, policy_flags.RECORD_FILE.value
    return Plan(
        episodes,
        _modes(),
        parallel_flag.environments(episodes, filmed=record_file is not None),
        seed,
        threshold,
        record_file,
        behavior_flag.BEHAVIOR_FROM.value,
    )


def _write(result: dict[str, Any]) -> None:
    """Logs a line for each mode and behavior, and puts the result into the file."""
    for mode, numbers in result["results"].items():
        logging.info("%s, %s: %s, %.1f s.", result["checkpoint"], mode, _told(numbers), numbers["seconds"])
        for behavior, of_one in numbers.get("behaviors", {}).items():
            logging.info("%s, %s, %s: %s.", result["checkpoint"], mode, behavior, _told(of_one))
    path = output_flag.OUTPUT.value
    if path and _WATCH.value:
        output_flag.append_line(path, result)
    elif path:
        output_flag.write(path, result)
    if path:
        logging.info("Result: %s", path)


def _told(numbers: Mapping[str, Any]) -> str:
    if not numbers["episodes"]:
        return "no episode of an agent has ended"
    mean, std, least, median, most = (_text(numbers[name]) for name in ("mean", "std", "min", "median", "max"))
    success = "" if numbers["success_rate"] is None else f", success {numbers['success_rate']:.0%}"
    return (
        f"return {mean} ± {std} over {numbers['episodes']} episodes (min {least}, median {median}, max {most}), "
        f"length {_text(numbers['length']['mean'])}{success}"
    )


def _text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    command_line.start(main)
