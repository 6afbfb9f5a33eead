"""Algorithms at the top of a module, so that workers can be told their names."""

from __future__ import annotations

from tests.trainers.many_agents import behaviors, dqn, ppo

make_hands = behaviors(left=ppo(), right=ppo(trained=False))
make_mixed = behaviors(left=ppo(), right=dqn())
for _name, _ctor in (("make_hands", make_hands), ("make_mixed", make_mixed)):
    _ctor.__module__, _ctor.__qualname__ = __name__, _name
