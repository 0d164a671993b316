"""Reasoning-like text without end: worked arithmetic, second thoughts, lists of steps.

Every number is right.  A problem is made by its seed alone; training takes seeds below
`HELD_OUT`, the evaluation those from there on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

HELD_OUT = 1_000_000_000

_NAMES = (
    "Anna", "Ben", "Carla", "Dmitri", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jamal", "Kofi",
    "Lena", "Marta", "Nils", "Olga", "Pavel", "Quinn", "Rosa", "Samir", "Tova", "Umar", "Vera",
)  # fmt: skip
_THINGS = (
    "apples", "books", "bricks", "candles", "chairs", "eggs", "lamps", "marbles", "nails",
    "oranges", "pencils", "plates", "ropes", "shells", "stamps", "stones", "tickets", "windows",
)  # fmt: skip
_OPENERS = (
    "Let me think about this step by step.", "Okay, what do we know?",
    "First, restate the problem.", "I will write down what is given.", "Let us go slowly.",
    "So the question asks for one number.",
    "Start with the simplest part.", "Before computing anything, look at the units.",
)  # fmt: skip
_DOUBTS = (
    "Wait, is that right?", "Hmm, let me check that.", "Hold on, I should not round here.",
    "Actually, let me verify this.", "No, that is not what was asked. Go back one step.",
    "That seems large, but it is fine.", "Is there a faster way? Maybe, but this one is safe.",
    "Let me make sure that nothing is counted twice.",
)  # fmt: skip
_CLOSERS = (
    "So the answer is {}.", "Therefore the answer is {}.", "That gives {}.", "The result is {}.",
    "Answer: {}.", "Hence {}.",
)  # fmt: skip

Problem = tuple[str, list[str], object]  # the question, the steps, the answer


def problem(seed: int) -> tuple[str, str]:
    """(question, worked answer) of that seed."""
    rng = random.Random(seed)
    question, steps, answer = rng.choice(_KINDS)(rng)
    lines = [rng.choice(_OPENERS)]
    for step in steps:
        lines.append(step)
        if rng.random() < 0.2:
            lines.append(rng.choice(_DOUBTS))
            if rng.random() < 0.5:
                lines.append(f"Again: {step[0].lower()}{step[1:]}" if step[0] != "I" else step)
    lines.append(rng.choice(_CLOSERS).format(answer))
    style = rng.randrange(3)
    if style == 0:
        return question, " ".join(lines)
    if style == 1:
        return question, "\n".join(lines)
    return question, "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))


def _product(rng: random.Random) -> Problem:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    a, b = rng.randint(12, 999), rng.randint(11, 99)
    tens, ones = b // 10 * 10, b % 10
    return (
        f"{name} has {a} boxes with {b} {thing} in each. How many {thing} are there?",
        [
            f"We need {a} * {b}.",
            f"Split {b} into {tens} + {ones}.",
            f"{a} * {tens} = {a * tens}.",
            f"{a} * {ones} = {a * ones}.",
            f"Together {a * tens} + {a * ones} = {a * b}.",
        ],
        a * b,
    )


def _sum(rng: random.Random) -> Problem:
    numbers = [rng.randint(10, 9999) for _ in range(rng.randint(3, 6))]
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{total} + {number} = {total + number}.")
        total += number
    return f"What is {' + '.join(map(str, numbers))}?", steps, total


def _division(rng: random.Random) -> Problem:
    thing, people = rng.choice(_THINGS), rng.randint(3, 40)
    total = rng.randint(people * 2, people * 90)
    each, left = divmod(total, people)
    return (
        f"{total} {thing} are shared equally among {people} people. How many are left over?",
        [
            f"{total} divided by {people} is {each} and something, because {people} * {each} = "
            f"{people * each} and {people} * {each + 1} = {people * (each + 1)} is too much.",
            f"So everybody gets {each}.",
            f"What remains is {total} - {people * each} = {left}.",
        ],
        left,
    )


def _equation(rng: random.Random) -> Problem:
    x, a, b = rng.randint(-20, 60), rng.randint(2, 19), rng.randint(1, 99)
    right = a * x + b
    return (
        f"Solve {a}x + {b} = {right} for x.",
        [
            f"Subtract {b} from both sides: {a}x = {right} - {b} = {a * x}.",
            f"Divide both sides by {a}: x = {a * x} / {a} = {x}.",
            f"Check: {a} * {x} + {b} = {a * x} + {b} = {right}. Correct.",
        ],
        f"x = {x}",
    )


def _percent(rng: random.Random) -> Problem:
    name, percent = rng.choice(_NAMES), rng.choice((5, 10, 15, 20, 25, 30, 40, 60, 75))
    price = rng.randint(2, 90) * 20
    off = price * percent // 100
    return (
        f"A coat costs {price} dollars. {name} gets {percent} percent off. What does {name} pay?",
        [
            f"One percent of {price} is {price / 100:g}.",
            f"{percent} percent is {percent} * {price / 100:g} = {off}.",
            f"{price} - {off} = {price - off}.",
        ],
        f"{price - off} dollars",
    )


def _journey(rng: random.Random) -> Problem:
    name, speed, hours = rng.choice(_NAMES), rng.randint(4, 120), rng.randint(2, 12)
    rest = rng.randint(1, 3)
    return (
        f"{name} travels {speed * hours} km at {speed} km per hour and rests for {rest} hours on "
        "the way. How long does the journey take?",
        [
            "Time is distance divided by speed.",
            f"{speed * hours} / {speed} = {hours} hours of moving.",
            f"Add the rest: {hours} + {rest} = {hours + rest} hours.",
        ],
        f"{hours + rest} hours",
    )


def _euclid(rng: random.Random) -> Problem:
    common = rng.randint(2, 30)
    a, b = common * rng.randint(5, 90), common * rng.randint(5, 90)
    steps, x, y = [], max(a, b), min(a, b)
    while y:
        steps.append(f"{x} = {x // y} * {y} + {x % y}.")
        x, y = y, x % y
    steps.append(f"The remainder is 0, so we stop at {x}.")
    return f"Find the greatest common divisor of {a} and {b}.", steps, x


def _prime(rng: random.Random) -> Problem:
    number = rng.randint(50, 900)
    steps = []
    for divisor in range(2, number):
        if divisor * divisor > number:
            steps.append(
                f"{divisor} * {divisor} = {divisor * divisor} is more than {number}: stop."
            )
            return f"Is {number} a prime number?", steps, f"yes, {number} is prime"
        if all(divisor % smaller for smaller in range(2, divisor)):
            left = number % divisor
            steps.append(f"{number} mod {divisor} = {left}{'.' if left else ', it divides.'}")
            if not left:
                break
    return f"Is {number} a prime number?", steps, f"no, {number} is not prime"


def _order(rng: random.Random) -> Problem:
    names = rng.sample(_NAMES, rng.randint(4, 6))
    clues = [f"{a} is taller than {b}." for a, b in pairwise(names)]
    shuffled = rng.sample(clues, len(clues))
    steps = [f"From '{clue[:-1]}' put them in this order." for clue in clues]
    steps.append(f"All together: {' > '.join(names)}.")
    return f"{' '.join(shuffled)} Who is the shortest?", steps, names[-1]


def _loop(rng: random.Random) -> Problem:
    start, step, count = rng.randint(0, 50), rng.randint(2, 30), rng.randint(3, 8)
    lines = [f"x = {start}", f"for i in range({count}):", f"    x = x + {step} * i"]
    steps, x = [f"At first x = {start}."], start
    for i in range(count):
        steps.append(f"i = {i}: x = {x} + {step} * {i} = {x + step * i}.")
        x += step * i
    return "What is x after this code?\n" + "\n".join(lines), steps, x


def _series(rng: random.Random) -> Problem:
    first, step, count = rng.randint(1, 40), rng.randint(2, 25), rng.randint(4, 7)
    shown = [first + step * i for i in range(count)]
    steps = [f"{b} - {a} = {b - a}." for a, b in pairwise(shown)]
    steps.append(f"The difference is always {step}, so the next is {shown[-1]} + {step}.")
    return f"Continue: {', '.join(map(str, shown))}, ...", steps, shown[-1] + step


_KINDS: tuple[Callable[[random.Random], Problem], ...] = (
    _product, _sum, _division, _equation, _percent, _journey, _euclid, _prime, _order, _loop,
    _series,
)  # fmt: skip
