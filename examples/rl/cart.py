"""A pole on a cart, and a policy of five weights that is to balance it. Plain Python, so that an actor starts at once.

The cart is pushed left or right fifty times a second; the equations are those of Barto, Sutton and Anderson,
"Neuronlike adaptive elements that can solve difficult learning control problems" (1983). An episode ends when the pole
falls, the cart leaves the track, or after STEPS_MAX pushes.
"""

from __future__ import annotations

import math
import random

STEPS_MAX = 200
TRACK_M, LEAN_RAD = 2.4, math.radians(12)  # beyond these the episode is over
GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N, TICK_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02

State = tuple[float, float, float, float]  # position and speed of the cart, angle and angular speed of the pole
Weights = list[float]  # four for the state, and a bias


def push(state: State, right: int) -> State:
    """Return the state one tick after a push to the right (1) or to the left (0)."""
    x, speed, angle, turn = state
    force = FORCE_N if right else -FORCE_N
    sin, cos, mass = math.sin(angle), math.cos(angle), CART_KG + POLE_KG
    common = (force + POLE_KG * HALF_POLE_M * turn * turn * sin) / mass
    turns = (GRAVITY * sin - cos * common) / (HALF_POLE_M * (4 / 3 - POLE_KG * cos * cos / mass))
    moves = common - POLE_KG * HALF_POLE_M * turns * cos / mass
    return x + TICK_S * speed, speed + TICK_S * moves, angle + TICK_S * turn, turn + TICK_S * turns


def stands(state: State) -> bool:
    """Return whether the pole stands and the cart is on its track."""
    return abs(state[0]) <= TRACK_M and abs(state[2]) <= LEAN_RAD


def goes_right(weights: Weights, state: State) -> float:
    """Return the probability with which the policy pushes to the right."""
    total = weights[4] + sum(weight * value for weight, value in zip(weights, state, strict=False))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


def episode(weights: Weights, rng: random.Random) -> tuple[list[State], list[int]]:
    """Play one episode, and return its states and pushes; the state after the last push comes last."""
    state: State = tuple(rng.uniform(-0.05, 0.05) for _ in range(4))  # type: ignore[assignment]
    states, pushes = [state], list[int]()
    while stands(state) and len(pushes) < STEPS_MAX:
        pushes.append(int(rng.random() < goes_right(weights, state)))
        state = push(state, pushes[-1])
        states.append(state)
    return states, pushes


def advantages(rewards: list[list[float]], discount: float = 0.98) -> list[list[float]]:
    """Return, for each push of each episode, how much better than the mean of all was what came after it.

    What came after it is the discounted sum of the rewards; the results have mean 0 and deviation 1 (REINFORCE with a
    baseline: Williams, 1992).
    """
    sums = []
    for each in rewards:
        total, found = 0.0, list[float]()
        for reward in reversed(each):
            total = reward + discount * total
            found.append(total)
        sums.append(found[::-1])
    flat = [value for found in sums for value in found]
    mean = sum(flat) / len(flat)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in flat) / len(flat)) or 1.0
    return [[(value - mean) / deviation for value in found] for found in sums]
