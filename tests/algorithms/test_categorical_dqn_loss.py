"""The loss of C51, and its gradient, against a loop over atoms on a linear network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from alf.utils.action_masks import split_mask
from tests.algorithms.off_policy import make
from tests.algorithms.test_action_masks import masked_experience
from tests.algorithms.test_off_policy_losses import (
    CHOICE,
    GAMMA,
    LAST,
    OBS,
    STEPS,
    B,
    T,
    experience,
    linear,
    loss_and_gradients,
    n_step_targets,
    randomize,
    share,
    trained_rows,
)


@pytest.mark.parametrize("n", STEPS)
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_categorical_dqn_loss_and_gradient(masked: bool, double: bool, n: int) -> None:
    """Targets suppose the action of the highest mean return among those that the mask allows."""
    exp, allowed = masked_experience() if masked else (experience(CHOICE), np.ones((T, B, 3), bool))
    kw: dict[str, Any] = {"observation_and_action_constraint_splitter": split_mask} if masked else {}
    kw.update(min_q_value=-1, max_q_value=2, double=double)
    algorithm = make("c51", OBS, CHOICE, GAMMA, layers=None, n_step=n, **kw)
    randomize(algorithm)
    obs = (exp.observation["observation"] if masked else exp.observation).numpy().astype(np.float64)
    atoms = np.linspace(-1.0, 2.0, 21)

    def probabilities(network: Any) -> np.ndarray:
        logits = linear(obs, network).reshape(T, B, 3, 21)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)

    p, p_target = probabilities(algorithm._q_network), probabilities(algorithm._target_networks[0])
    means, others = (x @ atoms for x in ((p, p_target) if double else (p_target, p)))
    best = np.where(allowed, means, -np.inf).argmax(-1)
    assert (best != others.argmax(-1)).any()
    assert (best != means.argmax(-1)).any() == masked
    # What lies n steps ahead: rewards, the discount and the row, read off targets that are linear in the value.
    base = n_step_targets(exp, np.zeros((T, B)), n)
    losses, kernel = np.zeros((T, B)), np.zeros((2, 3, 21))
    for t, b in trained_rows(exp, n):
        factor, row = 1.0, t
        for _ in range(T if n == -1 else n):
            row += 1
            factor *= GAMMA * float(exp.discount[row, b])
            if int(exp.step_type[row, b]) == LAST or row == T - 1:
                break
        target = np.zeros(21)
        for j in range(21):
            place = (np.clip(base[t, b] + factor * atoms[j], -1.0, 2.0) + 1.0) / 0.15
            low = min(int(np.floor(place + 1e-9)), 19)
            mass = p_target[row, b, best[row, b], j]
            target[low] += mass * (low + 1 - place)
            target[low + 1] += mass * (place - low)
        assert target.sum() == pytest.approx(1.0)
        action = int(exp.action[t, b])
        losses[t, b] = -(target * np.log(p[t, b, action])).sum() * share(n)
        kernel[:, action] += obs[t, b, :, None] * (p[t, b, action] - target) * share(n)
    variables = algorithm._q_network.trainable_variables
    loss, gradients, info = loss_and_gradients(algorithm, exp, variables)
    np.testing.assert_allclose(loss, losses, rtol=1e-3, atol=1e-4)
    priority = [np.mean([losses[row] for row in trained_rows(exp, n) if row[1] == b]) / share(n) for b in range(B)]
    np.testing.assert_allclose(info.priority, priority, rtol=1e-3)
    np.testing.assert_allclose(gradients[0], kernel.reshape(2, 63), rtol=1e-3, atol=1e-4)
