"""The equation behind the columns of a file: ``python -m npu_kernels.equations FILE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from npu_kernels._jobs import files
from npu_kernels.equations import _reading

INSTALL = "pip install 'npu_kernels[laws]'"


def main(arguments: list[str] | None = None) -> int:
    """Find the law of a file's columns and print its report; return the exit status.

    arguments: of the command line; None: those of this process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m npu_kernels.equations",
        description="Find the law behind the columns of a text file, by NPURegressor.",
        epilog="Units in the header, as in 'speed [m/s]', are used where every column has one. "
        "Ctrl-C gives the best law until then.",
    )
    parser.add_argument(
        "file", type=Path, help="columns between tabs, ; , | or blanks; # %% // start a comment"
    )
    parser.add_argument("--target", metavar="NAME", help="the column to explain; default: the last")
    parser.add_argument(
        "--inputs", nargs="+", metavar="NAME", help="the columns to explain it by; default: others"
    )
    parser.add_argument(
        "--units", nargs="+", metavar="NAME=UNIT", default=[], help="in place of the header's"
    )
    parser.add_argument("--no-units", action="store_true", help="leave those of the header aside")
    parser.add_argument(
        "--skip-rows", action="store_true", help="with text for a number, or other widths"
    )
    parser.add_argument(
        "--header",
        choices=("yes", "no"),
        default="auto",
        help="in the first line; default: as seen",
    )
    parser.add_argument("--decimal", choices=(".", ","), help="sign of numbers; default: as seen")
    parser.add_argument(
        "--functions",
        nargs="+",
        metavar="NAME",
        help="sin, cos, log, exp of all inputs, or COLUMN=sin,cos of one",
    )
    parser.add_argument(
        "--output-functions", nargs="+", metavar="NAME", help="of the target to try, or auto"
    )
    parser.add_argument(
        "--ratios", choices=("auto", "yes", "no"), default="auto", help="of two sums; default: auto"
    )
    parser.add_argument(
        "--groups", metavar="NAME", help="a column of labels, each with coefficients of its own"
    )
    parser.add_argument("--known", metavar="TEXT", help="a part of the law, such as '9.81*t**2/2'")
    parser.add_argument("--max-terms", type=int, help="of the law; default: 4")
    parser.add_argument(
        "--no-law", action="store_true", help="as many terms, up to 10, as predict best"
    )
    parser.add_argument("--starts", type=int, default=64, help="of the search; default: 64")
    parser.add_argument("--seed", type=int, default=0, help="of the search; default: 0")
    parser.add_argument("--checkpoint", type=Path, help="a file to continue from, and to write")
    parser.add_argument("--plot", type=files.output, metavar="FILE", help="for a picture")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except ImportError as error:  # of the package itself it has no name, and says what to install
        reason = f"{error.name} is not installed: {INSTALL}" if error.name else str(error)
        parser.exit(2, f"{parser.prog}: {reason}\n")
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _run(options: argparse.Namespace) -> int:
    table = _reading.read(options.file, options.header, options.decimal, options.skip_rows)
    labels = table.labels()
    inputs, target = _columns(options, table, labels)
    names = [*inputs, target]
    if options.no_law and options.max_terms is not None:
        raise ValueError(f"--max-terms must not be given with --no-law, got {options.max_terms}")
    if not 0 <= options.seed < 2**32:
        raise ValueError(f"--seed must be from 0 to 2**32 - 1, got {options.seed}")
    if options.plot is not None:
        _check_picture(options.plot)
    numbers = table.numbers(names, options.skip_rows, options.groups)
    labels_of_rows = table.cells.loc[numbers.index]
    groups = None if options.groups is None else list(labels_of_rows[options.groups])
    units = _units(options, table, names)

    from npu_kernels.equations import NPURegressor

    of_target = "auto" if options.output_functions == ["auto"] else options.output_functions
    model = NPURegressor(
        None if options.no_law else 4 if options.max_terms is None else options.max_terms,
        units=None if units is None else [units[name] for name in inputs],
        y_units=None if units is None else units[target],
        starts=options.starts,
        random_state=options.seed,
        verbose=int(sys.stderr.isatty()),
        functions=_functions(options.functions),
        output_functions=of_target,
        ratios={"yes": True, "no": False}.get(options.ratios, options.ratios),
        known=options.known,
    )
    X, y = numbers[inputs], numbers[target]
    model.fit(X, y, checkpoint=options.checkpoint, groups=groups)
    with_units = "" if units is None else ", with units"
    facts = [f"{len(numbers)} rows of {', '.join(inputs)}{with_units}"]
    left_out = len(table.cells) - len(numbers)
    facts += [f"{left_out} rows left out"] * bool(left_out)
    facts += [f"{', '.join(table.left_out)} left out"] * bool(table.left_out)
    facts += [f"groups by {options.groups}"] * (groups is not None)
    unitless = [name for name in names if name not in table.units]
    if table.units and units is None and not options.no_units:
        facts.append(f"units not used, as {', '.join(unitless)} lack one")
    unused = [name for name in labels if name not in (*names, options.groups)]
    facts += [f"no numbers in {', '.join(unused)}"] * bool(unused)
    print("; ".join(facts))
    print(model.report())
    if options.plot is not None:
        model.plot(X, y, groups=groups).savefig(options.plot)
        print(f"{options.plot} written")
    return 0


def _columns(
    options: argparse.Namespace, table: _reading.Table, labels: Collection[str]
) -> tuple[list[str], str]:
    """Return the inputs and the target; ValueError for columns that the table lacks."""
    target: str = options.target or list(table.cells)[-1]
    aside = {target, options.groups, *labels}
    inputs = options.inputs or [n for n in table.cells if n not in aside]
    columns = ", ".join(table.cells)
    for option, names in (("--target", [target]), ("--inputs", inputs)):
        unknown = [name for name in names if name not in table.cells]
        if unknown:
            raise ValueError(f"{option} must be of {columns}, got {', '.join(unknown)}")
    names = [*inputs, target]
    if len(names) < 2 or len(set(names)) < len(names):
        rule = f"--target and --inputs must be different columns of {columns}"
        raise ValueError(f"{rule}; got {', '.join(names)}")
    if options.groups is not None and options.groups not in set(table.cells) - set(names):
        raise ValueError(f"--groups must be another column of {columns}; got {options.groups}")
    return inputs, target


def _units(
    options: argparse.Namespace, table: _reading.Table, names: Sequence[str]
) -> Mapping[str, str] | None:
    """Return the unit of each column; None without them."""
    units = table.units | _given_units(options.units, names)
    without = [name for name in names if name not in units]
    if options.units and (without or options.no_units):
        rule = "--units must complete the header's, so that every column has one"
        reason = "--no-units" if options.no_units else f"none of {', '.join(without)}"
        raise ValueError(f"{rule}, got {reason}")
    if without or options.no_units:
        return None
    from npu_kernels.equations._products.units import dimensions

    try:
        dimensions(names, [units[name] for name in names], "the table")
    except ValueError as error:
        ways = "--units NAME=UNIT gives another one, --no-units leaves all of them aside, and"
        raise ValueError(f"{error} ({ways} # before a second line of names)") from None
    return units


def _check_picture(path: Path) -> None:
    """ValueError for an ending that is none of matplotlib's pictures."""
    from matplotlib.figure import Figure

    endings = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in endings:
        raise ValueError(f"--plot must end in one of .{', .'.join(endings)}, got {path}")


def _functions(texts: list[str] | None) -> list[str] | dict[str, list[str]] | None:
    """The argument `functions` of the estimator."""
    if texts is None or not any("=" in text for text in texts):
        return texts
    pairs = [text.partition("=") for text in texts]
    if not all(equals for _, equals, _ in pairs):
        rule = "--functions must be functions, or COLUMN=FUNCTION,... of each column"
        raise ValueError(f"{rule}; got {' '.join(texts)}")
    return {name: functions.split(",") for name, _, functions in pairs}


def _given_units(texts: list[str], names: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, pairs, strict=True):
        if not equals or name not in names:
            raise ValueError(f"--units must be NAME=UNIT of {', '.join(names)}, got {text}")
    return {name: unit for name, _, unit in pairs}


if __name__ == "__main__":
    sys.exit(main())
