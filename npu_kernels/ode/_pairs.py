"""The embedded Runge-Kutta pairs of the adaptive steps, and their interpolants.

A step of size h from u, with slopes k_i = f(v_i), v_1 = u, and k_7 = f(u_new), which is the next step's k_1:

    v_{i+1} = u + h sum_{j <= i} a_ij k_j    u_new = u + h sum_j a_6j k_j    error = h sum_j e_j k_j
    between its ends, 0 <= x <= 1:    u(x) = u + h sum_j k_j sum_p d_jp x^p,  p = 1 .. 4

Both pairs have order 5, an error estimate of order 4 and an interpolant of order 4 that needs no more evaluations.
"""

from __future__ import annotations

from typing import NamedTuple

STAGES = 7  # slopes of a step, of which the first is the last of the step before


class Pair(NamedTuple):
    """Coefficients.

    triangle: a_ij by rows, 21 numbers; the last row makes the step. error: e_j. dense: d_jp, four numbers for each j.
    stable: a step damps u' = a u, a < 0, only for ``|h a|`` up to this.
    """

    triangle: tuple[float, ...]
    error: tuple[float, ...]
    dense: tuple[float, ...]
    stable: float

    @property
    def numbers(self) -> list[float]:
        """All of them in a row, as the operators take them."""
        return [*self.triangle, *self.error, *self.dense, self.stable]


# Dormand and Prince, "A family of embedded Runge-Kutta formulae" (1980), with Shampine's interpolant ("Some practical
# Runge-Kutta formulas", 1986): the coefficients of MATLAB's ode45 and SciPy's RK45.
_DOPRI5 = Pair(
    triangle=(
        *(1 / 5,),
        *(3 / 40, 9 / 40),
        *(44 / 45, -56 / 15, 32 / 9),
        *(19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        *(9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        *(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    dense=(
        *(1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
        *(0.0, 0.0, 0.0, 0.0),
        *(0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
        *(0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
        *(
            0.0,
            127303824393 / 49829197408,
            -318862633887 / 49829197408,
            701980252875 / 199316789632,
        ),
        *(0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
        *(0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
    ),
    stable=3.3065,
)
# Tsitouras, "Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption" (2011).
_TSIT5 = Pair(
    triangle=(
        *(0.161,),
        *(-0.008480655492356989, 0.335480655492357),
        *(2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        *(5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        *(
            5.86145544294642,
            -12.92096931784711,
            8.159367898576159,
            -0.071584973281401,
            -0.028269050394068383,
        ),
        *(
            0.09646076681806523,
            0.01,
            0.4798896504144996,
            1.379008574103742,
            -3.290069515436081,
            2.324710524099774,
        ),
    ),
    error=(
        *(
            -0.00178001105222577714,
            -0.0008164344596567469,
            0.007880878010261995,
            -0.1447110071732629,
        ),
        *(0.5823571654525552, -0.45808210592918697, 0.015151515151515152),
    ),
    dense=(  # multiplied out
        *(1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216),
        *(0.0, 0.1317, -0.2234, 0.1017),
        *(0.0, 3.9302962368947516, -5.941033872131505, 2.490627285651253),
        *(0.0, -12.411077166933676, 30.33818863028232, -16.548102889244902),
        *(0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928),
        *(0.0, -27.896526289197286, 65.09189467479366, -34.87065786149661),
        *(0.0, 1.5, -4.0, 2.5),
    ),
    stable=3.5068,
)
PAIRS = {"dopri5": _DOPRI5, "tsit5": _TSIT5}
