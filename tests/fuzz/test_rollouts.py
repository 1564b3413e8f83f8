"""The time loop: any rollout, by Hypothesis."""

from tests.conftest import needs_library
from tests.fuzz import found
from tests.fuzz.budget import fuzz
from tests.fuzz.oracle import check
from tests.fuzz.problem import run
from tests.fuzz.rollouts import Rollout, rollouts

pytestmark = needs_library


def check_rollout(rollout: Rollout) -> None:
    problem = rollout.problem()
    check(problem, run(problem))


def test_rollouts() -> None:
    fuzz(check_rollout, rollouts(), 2, found.here(found.ROLLOUTS))
