"""Any loss, and any history of Adam beside torch's, by Hypothesis."""

from tests.conftest import needs_library
from tests.fuzz import found
from tests.fuzz.budget import fuzz
from tests.fuzz.oracle import check
from tests.fuzz.problem import run
from tests.fuzz.training import Loss, check_history, histories, losses

pytestmark = needs_library


def check_loss(loss: Loss) -> None:
    problem = loss.problem()
    check(problem, run(problem))


def test_losses() -> None:
    fuzz(check_loss, losses(), 1, found.LOSSES, at_once=4)


def test_adam() -> None:
    fuzz(check_history, histories(), 1, found.HISTORIES)
