"""Published measurements whose equation is known."""

from typing import NamedTuple

import numpy as np


class Table(NamedTuple):
    """A table ``[N, n + 1]``, the last column is y.

    exponents: of the terms of the known equation for ``y**power``, the largest term first; none
    where no equation of this form is known, so that it must be in doubt.
    """

    source: str
    columns: str
    rows: str
    exponents: tuple[tuple[float, ...], ...] = ()
    power: float = 1.0

    @property
    def values(self) -> np.ndarray:
        return np.fromstring(self.rows, sep=" ").reshape(-1, len(self.columns.split()))


TABLES = {
    "planets": Table(
        "semi-major axes (au) and periods (years), NASA planetary fact sheet", "a T",
        ".387 .2408 .723 .6152 1 1 1.524 1.8809 5.204 11.862 9.582 29.457 19.201 84.011 30.047 164.79",
        ((1.5,),),
    ),
    "moons of Jupiter": Table(
        "orbits (1000 km) and periods (days) of the Galilean moons, NASA fact sheet", "a T",
        "421.8 1.769 671.1 3.551 1070.4 7.155 1882.7 16.689",
        ((1.5,),),
    ),
    "moons of Saturn": Table(
        "orbits (1000 km) and periods (days), NASA fact sheet", "a T",
        "185.5 .942 238.0 1.370 294.7 1.888 377.4 2.737 527.1 4.518 1221.9 15.945 3560.9 79.33",
        ((1.5,),),
    ),
    "moons of Uranus": Table(
        "orbits (1000 km) and periods (days), NASA fact sheet", "a T",
        "129.9 1.413 190.9 2.520 266.0 4.144 436.3 8.706 583.5 13.463",
        ((1.5,),),
    ),
    "Boyle": Table(
        "volume and pressure of air, Boyle 1662, A Defence of the Doctrine", "V p",
        "48 29.125 46 30.5625 44 31.9375 42 33.5 40 35.3125 38 37 36 39.3125 34 41.625 32 44.1875 "
        "30 47.0625 28 50.3125 26 54.3125 24 58.8125 23 61.3125 22 64.0625 21 67.0625 20 70.6875 "
        "19 74.125 18 77.875 17 82.75 16 87.875 15 93.0625 14 100.4375 13 107.8125 12 117.5625",
        ((-1,),),
    ),
    "Ptolemy": Table(
        "angles of refraction from air into water, Optics, book V: their second differences are equal",
        "i r",
        "10 8 20 15.5 30 22.5 40 29 50 35 60 40.5 70 45.5 80 50",
        ((1,), (2,)),
    ),
    "Ohm": Table(
        "length of a wire and deflection, Ohm 1826: a / (b + x)", "x y",
        "2 326.75 4 300.75 6 277.75 10 238.25 18 190.75 34 134.5 66 83.25 130 48.5",
        ((1,), (0,)), -1,
    ),
    "Balmer": Table(
        "hydrogen lines in air (nm), NIST: 364.6 n**2 / (n**2 - 4)", "n wavelength",
        "3 656.279 4 486.135 5 434.0472 6 410.1734 7 397.0075 8 388.9064 9 383.5397",
        ((0,), (-2,)), -1,
    ),
    "Moseley": Table(
        "atomic numbers and K-alpha energies (keV), NIST: proportional to (Z - 1)**2 nearly", "Z E",
        "20 3.6917 22 4.5108 23 4.9522 24 5.4147 25 5.8988 26 6.4038 27 6.9303 28 7.4782 29 8.0478 "
        "30 8.6389",
    ),
    "trees": Table(
        "girth (in), height (ft) and volume of black cherry trees, Ryan 1976 (R: trees)", "girth height volume",
        "8.3 70 10.3 8.6 65 10.3 8.8 63 10.2 10.5 72 16.4 10.7 81 18.8 10.8 83 19.7 11 66 15.6 "
        "11 75 18.2 11.1 80 22.6 11.2 75 19.9 11.3 79 24.2 11.4 76 21 11.4 76 21.4 11.7 69 21.3 "
        "12 75 19.1 12.9 74 22.2 12.9 85 33.8 13.3 86 27.4 13.7 71 25.7 13.8 64 24.9 14 78 34.5 "
        "14.2 80 31.7 14.5 74 36.3 16 72 38.3 16.3 77 42.6 17.3 81 55.4 17.5 82 55.7 17.9 80 58.3 "
        "18 80 51.5 18 80 51 20.6 87 77",
        ((2, 1),),
    ),
    "Puromycin": Table(
        "concentration and rate of a treated enzyme, Treloar 1974 (R: Puromycin): V x / (K + x)", "x rate",
        ".02 76 .02 47 .06 97 .06 107 .11 123 .11 139 .22 159 .22 152 .56 191 .56 201 1.1 207 1.1 200",
    ),
    "Hubble": Table(
        "distance (Mpc) and velocity (km/s) of 24 nebulae, Hubble 1929", "r v",
        ".032 170 .034 290 .214 -130 .263 -70 .275 -185 .275 -220 .45 200 .5 290 .5 270 .63 200 "
        ".8 300 .9 -30 .9 650 .9 150 .9 500 1 920 1.1 450 1.1 500 1.4 500 1.7 960 2 500 2 850 2 800 2 1090",
        ((1,),),
    ),
    "Galileo": Table(
        "height and distance of a ball off an inclined plane, 1608, folio 116v", "h d",
        "100 253 200 337 300 395 450 451 600 495 800 534 1000 573",
    ),
    "mercury": Table(
        "temperature (C) and vapour pressure (mm) of mercury, 1973 (R: pressure)", "t p",
        "20 .0012 40 .006 60 .03 80 .09 100 .27 120 .75 140 1.85 160 4.2 180 8.8 200 17.3 220 32.1 "
        "240 57 260 96 280 157 300 247 320 376 340 558 360 806",
    ),
    "atmosphere": Table(
        "height (km) and pressure (hPa), US Standard Atmosphere 1976: (1 - h / 44.33)**5.256", "h p",
        "0 1013.25 1 898.74 2 794.95 3 701.08 4 616.4 5 540.19 6 471.81 7 410.6 8 356.51 9 307.42 "
        "10 264.36 11 226.32",
    ),
    "cars": Table(
        "speed (mph) and stopping distance (ft), Ezekiel 1930 (R: cars)", "v d",
        "4 2 4 10 7 4 7 22 8 16 9 10 10 18 10 26 10 34 11 17 11 28 12 14 12 20 12 24 12 28 13 26 13 34 "
        "13 34 13 46 14 26 14 36 14 60 14 80 15 20 15 26 15 54 16 32 16 40 17 32 17 40 17 50 18 42 18 56 "
        "18 76 18 84 19 36 19 46 19 68 20 32 20 48 20 52 20 56 20 64 22 66 23 54 24 70 24 92 24 93 24 120 25 85",
    ),
    "Forbes": Table(
        "boiling point of water (F) and pressure (in Hg), Forbes 1857 (R: forbes)", "t p",
        "194.5 20.79 194.3 20.79 197.9 22.4 198.4 22.67 199.4 23.15 199.9 23.35 200.9 23.89 201.1 23.99 "
        "201.4 24.02 201.3 24.01 203.6 25.14 204.6 26.57 209.5 28.49 208.6 27.76 210.7 29.04 211.9 29.88 "
        "212.2 30.06",
    ),
    "women": Table(
        "height (in) and weight (lb), World Almanac 1975 (R: women)", "h w",
        "58 115 59 117 60 120 61 123 62 126 63 129 64 132 65 135 66 139 67 142 68 146 69 150 70 154 71 159 72 164",
    ),
    "hills": Table(
        "distance (mi), climb (ft) and record (min) of 35 hill races, Atkinson 1984 (R: hills)", "d h t",
        "2.5 650 16.083 6 2500 48.35 6 900 33.65 7.5 800 45.6 8 3070 62.267 8 2866 73.217 "
        "16 7500 204.617 6 800 36.367 5 800 29.75 6 650 39.75 28 2100 192.667 5 2000 43.05 "
        "9.5 2200 65 6 500 44.133 4.5 1500 26.933 10 3000 72.25 14 2200 98.417 3 350 78.65 "
        "4.5 1000 17.417 5.5 600 32.567 3 300 15.95 3.5 1500 27.9 6 2200 47.633 2 900 17.933 "
        "3 600 18.683 4 2000 26.217 6 800 34.433 5 950 28.567 6.5 1750 50.5 5 500 20.95 "
        "10 4400 85.583 6 600 32.383 18 5200 170.25 4.5 850 28.1 20 5000 159.833",
    ),
    "Misra": Table(
        "NIST StRD Misra1a: b1 (1 - exp(-b2 x))", "x y",
        "77.6 10.07 114.9 14.73 141.1 17.94 190.8 23.93 239.9 29.61 289 35.18 332.8 40.02 378.4 44.82 "
        "434.8 50.76 477.3 55.05 536.8 61.01 593.1 66.4 689.1 75.47 760 81.78",
    ),
    "Norris": Table(
        "NIST StRD Norris: ozone monitors, b0 + b1 x", "x y",
        ".2 .1 337.4 338.8 118.2 118.1 884.6 888 10.1 9.2 226.5 228.1 666.3 668.5 996.3 998.5 448.6 "
        "449.1 777 778.9 558.2 559.2 .4 .3 .6 .1 775.5 778.1 666.9 668.8 338 339.3 447.5 448.9 11.6 "
        "10.8 556 557.7 228.1 228.3 995.8 998 887.6 888.8 120.2 119.6 .3 .3 .3 .6 556.8 557.6 339.1 "
        "339.3 887.2 888 999 998.5 779 778.9 11.1 10.2 118.3 117.6 229.2 228.9 669.1 668.4 448.9 "
        "449.2 .5 .2",
        ((1,),),
    ),
    "platinum": Table(
        "degrees C and ohms of a resistor Pt100, IEC 60751: another polynomial below 0", "t R",
        "-200 18.52 -150 39.72 -100 60.26 -50 80.31 0 100 50 119.4 100 138.51 150 157.33 200 175.86 "
        "250 194.1 300 212.05 350 229.72 400 247.09 450 264.18 500 280.98 550 297.49 600 313.71 "
        "650 329.64 700 345.28 750 360.64 800 375.7 850 390.48",
    ),
    "water": Table(
        "temperatures (K) and viscosities of water (mPa s), CRC Handbook: no power of T", "T eta",
        "273.15 1.787 278.15 1.519 283.15 1.307 288.15 1.139 293.15 1.002 298.15 .89 303.15 .798 "
        "313.15 .653 323.15 .547 333.15 .467 343.15 .404 353.15 .355 363.15 .315 373.15 .282",
    ),
}  # fmt: skip


class Series(NamedTuple):
    """A time series: the first column is the time.

    terms: of the known equation; none where it must be in doubt, since the series does not tell it, or
    no sum of products is known.
    """

    source: str
    columns: str
    rows: str
    terms: tuple[str, ...] = ()

    @property
    def values(self) -> np.ndarray:
        return np.fromstring(self.rows, sep=" ").reshape(-1, len(self.columns.split()))


SERIES = {
    "yeast": Series(
        "amounts of yeast, an hour apart, Carlson 1913", "t N",
        "0 9.6 1 18.3 2 29 3 47.2 4 71.1 5 119.1 6 174.6 7 257.3 8 350.7 9 441 10 513.3 11 559.7 "
        "12 594.8 13 629.4 14 640.8 15 651.1 16 655.9 17 659.6 18 661.8",
        ("N in N'", "N**2 in N'"),
    ),
    "census": Series(
        "population of the United States (millions), Bureau of the Census; Pearl and Reed 1920", "t N",
        "1790 3.929 1800 5.308 1810 7.24 1820 9.638 1830 12.866 1840 17.069 1850 23.192 1860 31.443 "
        "1870 38.558 1880 50.156 1890 62.948 1900 75.995 1910 91.972 1920 105.711 1930 122.775 "
        "1940 131.669 1950 150.697",
        ("N in N'", "N**2 in N'"),
    ),
    "sunflower": Series(
        "mean heights (cm) by days, Reed and Holland 1919", "t h",
        "7 17.93 14 36.36 21 67.76 28 98.1 35 131 42 169.5 49 205.5 56 228.3 63 247.1 70 250.5 "
        "77 253.8 84 254.5",
    ),
    "orange tree": Series(
        "circumferences (mm) by days, Draper and Smith 1998 (R's Orange, tree 1)", "t c",
        "118 30 484 58 664 87 1004 115 1231 120 1372 142 1582 145",
    ),
    "pine": Series(
        "heights (feet) by years, Kung 1986 (R's Loblolly, seed 301)", "t h",
        "3 4.51 5 10.89 10 28.72 15 41.74 20 52.7 25 60.92",
    ),
    "indomethacin": Series(
        "concentrations (mg/l) by hours, Kwan and others 1976 (R's Indometh, subject 1)", "t c",
        ".25 1.5 .5 .94 .75 .78 1 .48 1.25 .37 2 .19 3 .12 4 .11 5 .08 6 .07 8 .05",
    ),
    "nitrogen dioxide": Series(
        "decay at 300 C (mol/l, s): of second order, as textbooks have it", "t c",
        "0 .01 50 .00787 100 .00649 200 .00481 300 .0038",
    ),
    "butadiene": Series(
        "dimerisation (mol/l, s): of second order, as textbooks have it", "t c",
        "0 .01 1000 .00625 1800 .00476 2800 .0037 3600 .00313 4400 .0027 5200 .00241 6200 .00208",
    ),
    "influenza": Series(
        "boys in bed by days, British Medical Journal 1978: the susceptible were not counted", "t I",
        "0 3 1 8 2 26 3 76 4 225 5 298 6 258 7 233 8 189 9 128 10 68 11 29 12 14 13 4",
    ),
    "lynx and hare": Series(
        "pelts (thousands) 1900 to 1920, Hudson's Bay Company; Odum 1953", "t H L",
        "0 30 4 1 47.2 6.1 2 70.2 9.8 3 77.4 35.2 4 36.3 59.4 5 20.6 41.7 6 18.1 19 7 21.4 13 "
        "8 22 8.3 9 25.4 9.1 10 27.1 7.4 11 40.3 8 12 57 12.3 13 76.6 19.5 14 52.3 45.7 "
        "15 19.5 51.1 16 11.2 29.7 17 7.6 15.8 18 14.6 9.7 19 16.2 10.1 20 24.7 8.6",
    ),
}  # fmt: skip
