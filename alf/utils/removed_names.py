"""What gin files of ALF's earlier TensorFlow releases name and this one has not: a sentence each, with what to do."""

from __future__ import annotations

import re
from typing import NamedTuple


class _Removed(NamedTuple):
    """Modules, configurables and parameters that a pattern matches in full, and what is said of them.

    The sentence may repeat groups of the match, as in `re.Match.expand`.
    """

    names: str
    sentence: str


_REMOVED = (
    _Removed(
        r"alf\.algorithms\.(mbrl|dynamics_learning|reward_learning|planning)_algorithm|alf\.examples\.mbrl_pendulum"
        r"|MbrlAlgorithm|DeterministicDynamicsAlgorithm|FixedRewardFunction|RandomShootingAlgorithm",
        "alf has no model-based planning: use SacAlgorithm, as examples/sac_pendulum.gin does.",
    ),
    _Removed(
        r"alf\.algorithms\.(merlin|decoding|vae|generator)(_algorithm)?"
        r"|MerlinAlgorithm|MemoryBasedPredictor|MemoryBasedActor|Resnet(En|De)codingNetwork|DecodingAlgorithm",
        "alf has no MERLIN and no decoders: for memory use recurrent networks, as examples/async_ppo_rnn_memory.gin does.",
    ),
    _Removed(
        r"alf\.algorithms\.(misc_algorithm|mi_estimator)|MISCAlgorithm|MIEstimator",
        "alf has no rewards by mutual information: use ICMAlgorithm, RNDAlgorithm or DIAYNAlgorithm.",
    ),
    _Removed(
        r"alf\.environments\.suite_socialbot|suite_socialbot\.load|alf\.networks\.target_navigation|social_bot(\..*)?",
        "alf does not run Gazebo's SocialRobot: use a MuJoCo environment through suite_mujoco.load, or bring your own as "
        "create_environment.env_name.",
    ),
    _Removed(
        r"alf\.environments\.suite_mario|suite_mario\.load",
        "alf does not run Super Mario, whose game file is not free: use an Atari game, as examples/ac_breakout.gin does.",
    ),
    _Removed(
        r"alf\.environments\.suite_dmlab|suite_dmlab\.load",
        "alf does not run DeepMind Lab, which no package installs: use MiniGrid, or bring your own environment as "
        "create_environment.env_name.",
    ),
    _Removed(
        r"alf\.environments\.suite_simple|suite_simple\.load|NoisyArray",
        "alf has no NoisyArray: bring your own environment as create_environment.env_name.",
    ),
    _Removed(
        r"pybullet_envs(\..*)?",
        "pip install pybullet_envs_gymnasium and take this import out: its environments are registered when their id is "
        "asked for. Or use MuJoCo's, such as 'Humanoid-v5'.",
    ),
    _Removed(
        r"create_(ac|ppo|ddpg|sac)_algorithm|off_policy_trainer\.train|train_eval|PPOLoss2",
        "This is of ALF's first releases: set TrainerConfig.algorithm_ctor = @Agent with Agent.rl_algorithm_cls, as the files "
        "in examples do, and TrainerConfig for what a run needs.",
    ),
    _Removed(
        r"(gym\.envs\.)?(registration\.)?EnvSpec\.make",
        "suite_gym.load hands what it does not know itself to the environment: bind suite_gym.load.ARGUMENT instead, such as "
        "suite_gym.load.max_episode_steps.",
    ),
    _Removed(
        r"(.*\.)?suite_gym\.wrap_env",
        "suite_gym.load wraps environments: bind its gym_env_wrappers, env_wrappers and max_episode_steps.",
    ),
    _Removed(r"tf\.optimizers\.(\w+)", r"Optimizers of TensorFlow: write \1, or tf.keras.optimizers.\1 in full."),
    _Removed(
        r"SequentialLayer|(utils\.)?mlp_layers|alf\.utils\.encoding_network(\..*)?",
        "These layers are gone: use @EncodingNetwork(), TF-Agents' network, whose fc_layer_params are the sizes of its layers.",
    ),
    _Removed(
        r"(common\.)?get_vocab_size",
        "alf counts no words of an environment: write the number itself. alf.environments.wrappers has TextToBytes for texts.",
    ),
    _Removed(
        r"(summary_utils\.)?add_(variables|gradients)_summaries",
        "Set TrainerConfig.summarize_grads_and_vars = True, for the norms of every gradient and variable.",
    ),
    _Removed(
        r"SyncUniformExperienceReplayer",
        "Replayers are chosen by name: set exp_replayer = 'uniform' of the driver, such as SyncOffPolicyDriver.exp_replayer, and "
        "ReplayBuffer.max_length.",
    ),
    _Removed(
        r"(.*\.)?ReplayBuffer\.(device|name)",
        "A replay buffer is in the memory of the machine and needs no name: take this line out.",
    ),
    _Removed(
        r"alf\.networks\.(actor|critic)_rnn_network(\..*)?",
        "TF-Agents' ActorRnnNetwork and CriticRnnNetwork are those: name them alone, without import, and give lstm_size.",
    ),
    _Removed(r"alf\.experience_replayers(\..*)?", "Replayers are in alf.replay; gin files need not import them."),
    _Removed(
        r"alf\.examples(\..*)?",
        "Modules of examples are not part of alf: write `import` with the name of a module of your own.",
    ),
)


def what_instead(name: str) -> str | None:
    """What to do about a module or a configurable that earlier releases had.

    Args:
      name: as the gin file has it, without a scope; that of a parameter is CONFIGURABLE.PARAMETER.

    Returns:
      One or two sentences; None for a name that has never been there.
    """
    found = ((re.fullmatch(removed.names, name), removed.sentence) for removed in _REMOVED)
    return next((match.expand(sentence) for match, sentence in found if match), None)
