"""The numbers of csrc/core/simd/tables.h: `python -m tools.simd_tables` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mpmath
from mpmath import mp, mpf


@dataclass(frozen=True)
class Format:
    """A type, its cells (as many as one instruction looks up) and the grid of log c."""

    name: str
    digits: int  # bits of a significand
    cells: int
    grid: int  # log c is a multiple of 2^-grid
    log_degree: int  # of the polynomials
    exp_degree: int


FORMATS = Format("float", 24, 32, 17, 2, 1), Format("double", 53, 16, 43, 8, 5)


def ends_of_cells(count: int) -> Iterator[tuple[mpf, mpf]]:
    """Significands from 3/4 to 3/2 by their first bits after the leading one: first [1, 3/2), then
    [3/4, 1)."""
    for n in range(count):
        size = 1 if n < count // 2 else mpf(0.5)
        yield size * (1 + mpf(n) / count), size * (1 + mpf(n + 1) / count)


def rounded(value: mpf, digits: int) -> mpf:
    significand, exponent = mpmath.frexp(value)
    return mpmath.ldexp(mpmath.nint(mpmath.ldexp(significand, digits)), exponent - digits)


def cell(low: mpf, high: mpf, form: Format) -> tuple[mpf, mpf]:
    """1 / c and log c, of the c near the cell's middle that makes log a most exact at the cell's
    ends."""
    if 1 in (low, high):
        return mpf(1), mpf(0)
    size_low, size_high = abs(mpmath.log(low)), abs(mpmath.log(high))
    middle = (low * size_high + high * size_low) / (size_low + size_high)
    step = mpf(2) ** -form.grid
    nearest = int(mpmath.nint(mpmath.log(middle) / step))
    reach = min(3000, int((high - low) / middle / 4 / step))

    def error(candidate: int) -> mpf:
        """What log c's error and two roundings of z are of log a, at the worse end of the cell."""
        reciprocal = rounded(mpmath.exp(-candidate * step), form.digits)
        of_log_c = abs(mpmath.log(reciprocal) + candidate * step)
        of_z = [2 * abs(end * reciprocal - 1) * mpf(2) ** -form.digits for end in (low, high)]
        return max((of_log_c + of_z[0]) / size_low, (of_log_c + of_z[1]) / size_high)

    best = min(range(nearest - reach, nearest + reach + 1), key=error)
    return rounded(mpmath.exp(-best * step), form.digits), best * step


def polynomial(form: Format) -> list[mpf]:
    """(log(1 + z) - z) / z^2 at the Chebyshev nodes of the cells beside 1, where z is largest;
    constant first."""
    low, high = -mpf(1) / (2 * form.cells), mpf(1) / form.cells
    count = form.log_degree + 1
    nodes = [
        (low + high) / 2 + (high - low) / 2 * mpmath.cos(mpmath.pi * (2 * n + 1) / (2 * count))
        for n in range(count)
    ]
    powers = mpmath.matrix([[z**n for n in range(count)] for z in nodes])
    values = mpmath.matrix([(mpmath.log1p(z) - z) / z**2 for z in nodes])
    return list(mpmath.lu_solve(powers, values))


def log_numbers(form: Format) -> dict[str, list[float]]:
    """The members of LogTable<form.name>."""
    with mp.workprec(300):
        cells = [cell(low, high, form) for low, high in ends_of_cells(form.cells)]
        factors = [float(rounded(c, form.digits)) for c in polynomial(form)]
        ln2 = mpmath.floor(mpmath.ldexp(mpmath.log(2), form.grid)) / mpf(2) ** form.grid
        rest = float(rounded(mpmath.log(2) - ln2, form.digits))
    return {
        "kReciprocal": [float(c) for c, _ in cells],
        "kLog": [float(log) for _, log in cells],
        "kFactors": factors,
        "kLn2": [float(ln2), rest],
    }


def exp_numbers(form: Format) -> dict[str, list[float]]:
    """The members of ExpTable<form.name>; the factors are (exp t - 1 - t) / t^2's Taylor series,
    constant first."""
    with mp.workprec(300):
        powers = [
            float(rounded(mpf(2) ** (mpf(n) / form.cells), form.digits)) for n in range(form.cells)
        ]
        factors = [
            float(rounded(1 / mpmath.factorial(n + 2), form.digits))
            for n in range(form.exp_degree + 1)
        ]
    return {"kPowers": powers, "kFactors": factors}


TABLES: dict[str, Callable[[Format], dict[str, list[float]]]] = {
    "LogTable": log_numbers,
    "ExpTable": exp_numbers,
}


def main() -> None:
    for table, numbers in TABLES.items():
        for form in FORMATS:
            for name, values in numbers(form).items():
                print(f"{table}<{form.name}> {name}:", ", ".join(value.hex() for value in values))


if __name__ == "__main__":
    main()
