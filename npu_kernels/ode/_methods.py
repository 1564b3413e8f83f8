"""The Runge-Kutta methods: fixed steps, and embedded pairs with their interpolants.

A step of size h from u makes s derivatives k_i = f(v_i), v_1 = u:

    v_{i+1} = u + h sum_{j <= i} a_ij k_j    u_new = u + h sum_j a_sj k_j

A pair has order 5, an error estimate of order 4, and an interpolant of order 4 without further
evaluations. Its step makes six derivatives; k_7 = f(u_new) is the next step's k_1:

    error = h sum_j e_j k_j    u(x) = u + h sum_j k_j sum_p d_jp x^p,  0 <= x <= 1, p = 1 .. 4

The stages of an implicit pair after the first depend on their own derivatives, too: g is one number
for all of them, so that one matrix 1 - h g J serves them all.

    v_{i+1} = u + h sum_{j <= i} a_ij k_j + h g k_{i+1}    u_new = v_7

The state at x within such a step is one more stage, so that what a stiff model binds together is
bound there, too; a polynomial in the derivatives would have an error of order 3 in it:

    u(x) = u + h sum_j k_j sum_p d_jp x^p + h g (k(x) - k_1),    k(x) = f(u(x))
"""

from __future__ import annotations

import math
from typing import NamedTuple

STAGES = 7  # derivatives of a pair's step, of which the first is the last of the step before


class Method(NamedTuple):
    """One method; a pair has an error estimate, and chooses its steps."""

    tableau: tuple[float, ...]  # a_ij by rows, s (s + 1) / 2 numbers; the last row makes the step
    order: int  # of a step's result
    stable: float  # a step damps u' = a u, a < 0, only for |h a| up to this
    error: tuple[float, ...] = ()  # e_j of a pair
    dense: tuple[float, ...] = ()  # d_jp of a pair, four numbers for each j
    diagonal: float = 0.0  # g of an implicit pair

    @property
    def numbers(self) -> list[float]:
        """All numbers of a pair in a row, as the operators take them."""
        return [*self.tableau, *self.error, *self.dense, self.stable, self.diagonal]


_RK4 = (1 / 2, 0.0, 1 / 2, 0.0, 0.0, 1.0, 1 / 6, 1 / 3, 1 / 3, 1 / 6)
_RK4_38 = (1 / 3, -1 / 3, 1.0, 1.0, -1.0, 1.0, 1 / 8, 3 / 8, 3 / 8, 1 / 8)
# Dormand and Prince, "A family of embedded Runge-Kutta formulae" (1980), with Shampine's
# interpolant ("Some practical Runge-Kutta formulas", 1986): the coefficients of MATLAB's ode45 and
# SciPy's RK45.
_DOPRI5 = Method(
    tableau=(
        *(1 / 5,),
        *(3 / 40, 9 / 40),
        *(44 / 45, -56 / 15, 32 / 9),
        *(19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        *(9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        *(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    order=5,
    stable=3.3065,
    error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    dense=(
        *(1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
        *(0.0, 0.0, 0.0, 0.0),
        *(0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
        *(0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
        *(0.0, 127303824393 / 49829197408),
        *(-318862633887 / 49829197408, 701980252875 / 199316789632),
        *(0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
        *(0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
    ),
)
# Tsitouras, "Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying
# assumption" (2011).
_TSIT5 = Method(
    tableau=(
        *(0.161,),
        *(-0.008480655492356989, 0.335480655492357),
        *(2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        *(5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        *(5.86145544294642, -12.92096931784711, 8.159367898576159),
        *(-0.071584973281401, -0.028269050394068383),
        *(0.09646076681806523, 0.01, 0.4798896504144996),
        *(1.379008574103742, -3.290069515436081, 2.324710524099774),
    ),
    order=5,
    stable=3.5068,
    error=(
        *(-0.00178001105222577714, -0.0008164344596567469, 0.007880878010261995),
        *(-0.1447110071732629, 0.5823571654525552, -0.45808210592918697, 0.015151515151515152),
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
)
# Kvaerno, "Singly diagonally implicit Runge-Kutta methods with an explicit first stage" (BIT 44,
# 2004), ESDIRK 5/4. Of the implicit methods of order 5 it is the one whose discrete adjoint is
# cheapest and cleanest: stages are solved one by one, and the derivative of each is one more system
# with the transposed matrix, by the implicit function theorem; a Rosenbrock method (Rodas) would
# need derivatives of the Jacobian, a Radau method systems of three times the size. Both members are
# stiffly accurate, so that the error estimate is bounded for any stiffness. The stage at x has
# order 4 with the smallest coefficients that give the step's ends.
_KVAERNO5 = Method(
    tableau=(
        *(0.26,),
        *(0.13, 0.84033320996790809),
        *(0.22371961478320505, 0.47675532319799699, -0.06470895363112615),
        *(0.16648564323248321, 0.10450018841591720, 0.03631482272098715, -0.13090704451073998),
        *(0.13855640231268224, 0.0, -0.04245337201752043, 0.02446657898003141),
        *(0.61943039072480676,),
        *(0.13659751177640291, 0.0, -0.05496908796538376, -0.04118626728321046),
        *(0.62993304899016403, 0.06962479448202728),
    ),
    order=5,
    stable=math.inf,
    error=(
        *(-0.00195889053627933, 0.0, -0.01251571594786333, -0.06565284626324187),
        *(0.01050265826535727, -0.19037520551797272, 0.26),
    ),
    dense=(
        *(2.0984660796160095, -3.447857536706677, 2.2408189807527616, -0.4948300118856914),
        *(0.0, 0.0, 0.0, 0.0),
        *(-0.30400199698536806, 1.9630517255199214, -2.6385916988540266, 0.9245728823540895),
        *(1.0506652946902324, -3.4969474755007046, 3.3838182441257945, -0.9787223305985332),
        *(-1.8062302273268451, 6.679332395296094, -5.679998126984172, 1.4368290080050874),
        *(-0.9364089730173661, 1.2455037326741685, -0.15116050509919782, -0.08830946007557727),
        *(0.8975098230233373, -2.9430828412828025, 2.84511310605884, -0.7995400877993749),
    ),
    diagonal=0.26,
)
ALL = {
    "euler": Method((1.0,), 1, 2.0),
    "midpoint": Method((1 / 2, 0.0, 1.0), 2, 2.0),
    "rk4": Method(_RK4, 4, 2.785),
    "rk4_38": Method(_RK4_38, 4, 2.785),
    "dopri5": _DOPRI5,
    "tsit5": _TSIT5,
    "kvaerno5": _KVAERNO5,
}
METHODS = {name: method.tableau for name, method in ALL.items() if not method.error}
PAIRS = {name: method for name, method in ALL.items() if method.error}
# The explicit pair, and the implicit one for what is too stiff for it.
AUTO, EXPLICIT, IMPLICIT = "auto", "tsit5", "kvaerno5"
ADAPTIVE = (*PAIRS, AUTO)
