"""Bindings of another kind than the parameters they are for, found before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import pytest

import alf.algorithms.agent
import alf.algorithms.dqn_algorithm
import alf.algorithms.icm_algorithm
import alf.algorithms.ppo_algorithm
import alf.algorithms.sac_algorithm
import alf.environments.suite_unittest
import alf.networks.actor_network
import alf.trainers.off_policy_trainer
import alf.trainers.on_policy_trainer
import alf.trainers.schedule
import alf.trainers.stopping
import alf.utils.external_configurables
import alf.utils.math_ops  # noqa: F401
from alf.utils import gin_utils
from alf.utils.gin_utils import GinConfigError, parse_gin, unused_bindings


@gin.configurable
def kinds_target(
    count: int = 1,
    share: float | None = None,
    flag: bool = False,
    sizes: Sequence[int] | None = None,
    functions: Sequence[Callable[[int], int]] = (),
    anything: Any = None,
    unannotated=0.5,
    sloppy: int = None,  # type: ignore[assignment]  # noqa: RUF013
) -> tuple[Any, ...]:
    return count, share, flag, sizes, anything, unannotated


@gin.configurable
class KindsBase:
    def __init__(self, gamma: float = 0.9, loss: Any = None) -> None:
        self.gamma = gamma


@gin.configurable
class KindsCalled:
    def __call__(self, number: int) -> int:
        return number


@gin.configurable
class KindsDerived(KindsBase):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (["kinds_target.count='x'"], "kinds_target.count='x' must be a whole number."),
        (["kinds_target.count=1.5"], "kinds_target.count=1.5 must be a whole number."),
        (["kinds_target.share=(1, 2)"], "kinds_target.share=(1, 2) must be a number or None."),
        (["here/kinds_target.flag='False'"], "here/kinds_target.flag='False' must be True or False."),
        (["kinds_target.sizes=3"], "kinds_target.sizes=3 must be a list of whole numbers or None."),
        (["g='x'", "kinds_target.share=%g"], "kinds_target.share=%g must be a number or None."),
        (["kinds_target.share=@kinds_target"], "kinds_target.share=@kinds_target must be a number or None."),
        (
            ["g='x'", "kinds_target.sizes=[1, %g]"],
            "kinds_target.sizes=[1, %g] must be a list of whole numbers or None.",
        ),
        (["KindsDerived.gamma=None"], "KindsDerived.gamma=None must be a number."),
        (["KindsDerived.gamma=@KindsBase()"], "KindsDerived.gamma=@KindsBase() must be a number."),
        (["b=@KindsBase()", "kinds_target.share=%b"], "kinds_target.share=%b must be a number or None."),
        (["kinds_target.share=@KindsCalled()"], "kinds_target.share=@KindsCalled() must be a number or None."),
        (
            ["kinds_target.functions=(@KindsBase(),)"],
            "kinds_target.functions=(@KindsBase(),) must be a list of functions or classes (@name).",
        ),
    ],
)
def test_another_kind_is_told_in_a_sentence(bindings, message):
    with pytest.raises(GinConfigError) as told:
        parse_gin(bindings=bindings)
    assert str(told.value) == message


def test_what_may_be_right_is_let_through():
    bindings = [
        "g=0.5",
        "kinds_target.share=%g",
        "a/kinds_target.share=@kinds_target()",
        "b/kinds_target.share=None",
        "kinds_target.flag=1",
        "kinds_target.sizes=(1, 2)",
        "d/kinds_target.functions=[@KindsBase, @KindsCalled(), @kinds_target()]",
        "kinds_target.anything='x'",
        "kinds_target.unannotated='x'",
        "kinds_target.sloppy=None",
        "KindsDerived.gamma=1",
        "KindsDerived.loss='x'",
        "itself=%itself",
        "c/kinds_target.share=%itself",
        "ring=[%ring]",
        "c/kinds_target.sizes=%ring",
    ]
    parse_gin(bindings=bindings)
    assert kinds_target()[1:4] == (0.5, 1, (1, 2))


def test_whole_numbers_come_as_integers():
    parse_gin(bindings=["n=1e6", "kinds_target.count=1e6", "a/kinds_target.count=%n", "kinds_target.share=2e3"])
    count, share, *_ = kinds_target()
    assert (count, type(count)) == (1_000_000, int)
    assert (share, type(share)) == (2000.0, float)


def test_a_macro_that_is_a_whole_number_stays_one_and_is_used():
    """It can be given anew when the run is resumed, and `strict` bears with it."""
    parse_gin(bindings=["n=1e6", "m=%n", "kinds_target.count=%m"])
    count = kinds_target()[0]
    assert (count, type(count)) == (1_000_000, int)
    assert unused_bindings() == []
    assert "kinds_target.count = %m" in gin.operative_config_str()


def test_nothing_is_looked_at_before_all_is_known():
    parse_gin(bindings=["kinds_target.count='x'"], finalize=False)
    with pytest.raises(GinConfigError, match="must be a whole number"):
        parse_gin(bindings=[])


@pytest.mark.parametrize(
    "binding",
    [
        "Adam.learning_rate='fast'",
        "Adam.learning_rate=(1, 2)",
        "Adam.beta_1=[0.9]",
        "Adam.epsilon=None",
        "Adam.amsgrad='x'",
        "Adam.clipnorm='x'",
        "PolynomialDecay.decay_steps='x'",
        "ExponentialDecay.initial_learning_rate='x'",
        "ActorCriticLoss.gamma='x'",
        "ActorCriticLoss.gamma=(1, 2)",
        "ActorCriticLoss.td_error_loss_fn='x'",
        "ActorCriticLoss.entropy_regularization='x'",
        "PPOLoss.importance_ratio_clipping='x'",
        "PPOLoss.log_prob_clipping=None",
        "Agent.gradient_clipping='x'",
        "Agent.reward_shaping_fn=3",
        "reward_scaling.scale='x'",
        "OneStepTDLoss.gamma='x'",
        "OneStepTDLoss.td_error_loss_fn='x'",
        "SacAlgorithm.target_update_tau='x'",
        "DqnAlgorithm.epsilon_greedy=[1]",
        "ICMAlgorithm.hidden_size='x'",
        "PPOLoss.entropy_regularization=@s/LinearSchedule()",
        "Agent.intrinsic_reward_coef=@LinearSchedule()",
        "ActorDistributionNetwork.fc_layer_params=256",
        "here/ValueNetwork.fc_layer_params=(100, 0)",
        "QNetwork.fc_layer_params=('a',)",
        "ActorDistributionRnnNetwork.lstm_size=8",
        "ActorDistributionRnnNetwork.input_fc_layer_params=[-1]",
        "networks.actor_network.ActorNetwork.fc_layer_params=[0]",
    ],
)
def test_what_would_fail_in_an_update_is_told_before(binding):
    with pytest.raises(GinConfigError) as told:
        parse_gin(bindings=[binding])
    name, _, value = binding.partition("=")
    assert str(told.value).startswith(f"{name}={value} must be ")
    assert "\n" not in str(told.value)


def _complaint(path):
    gin.clear_config()
    try:
        parse_gin([str(path)])
    except GinConfigError as e:
        # Parts and examples of extras are not whole by themselves.
        return str(e)
    return ""


def test_every_example_is_of_the_right_kinds():
    files = sorted({p for d in gin_utils.example_directories() for p in d.glob("*.gin")})
    assert len(files) > 20
    told = {path.name: _complaint(path) for path in files}
    assert {name: text for name, text in told.items() if " must be " in text} == {}
    assert sum(not text for text in told.values()) > 10
