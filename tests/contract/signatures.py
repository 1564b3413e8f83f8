"""The signatures of all public names, as lines of text."""

import argparse
import contextlib
import dataclasses
import difflib
import enum
import functools
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import npu_kernels

FILE = Path(__file__).with_name("signatures.json")
BASE_CLASS = {
    "npu_kernels.layers.BaseLayer": npu_kernels.layers.BaseLayer
}  # public, and in no `__all__`
# What a class may define for Python and for notebooks, beside its public names.
PROTOCOL = re.compile("__(call|enter|exit|getitem|iter|len|str)__|_repr_(html|latex)_")
Entries = dict[str, list[str]]  # a dotted name, and what a caller may rely on, one thing a line


def signatures() -> Entries:
    """All public names. One that has several paths stands at the shortest; the others name it."""
    walked = [module.name for module in pkgutil.walk_packages(npu_kernels.__path__, "npu_kernels.")]
    names = ["npu_kernels", *(name for name in walked if "._" not in name and "__" not in name)]
    modules = {name: importlib.import_module(name) for name in names}
    public = BASE_CLASS | {
        f"{name}.{inner}": getattr(module, inner)
        for name, module in modules.items()
        for inner in module.__all__
    }
    entries: Entries = {name: ["module"] for name in modules}
    paths: dict[int, str] = {}
    for path in sorted(public, key=lambda path: (path.count("."), path)):
        value = public[path]
        if callable(value) and paths.setdefault(id(value), path) != path:
            entries[path] = [f"is {paths[id(value)]}"]
        else:
            entries |= _of_class(path, value) if inspect.isclass(value) else {path: _lines(value)}
    suffix = ".__main__"
    packages = [name.removesuffix(suffix) for name in walked if name.endswith(suffix)]
    commands = {name: module for name, module in modules.items() if hasattr(module, "main")}
    commands |= {name: importlib.import_module(name + suffix) for name in packages}
    for name, module in commands.items():
        entries |= _of_command(name, module.main)
    return dict(sorted(entries.items()))


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters in their order, with defaults; those behind a star are given by name."""
    lines = []
    for parameter in inspect.signature(function).parameters.values():
        text = str(parameter.replace(annotation=parameter.empty))
        is_named = parameter.kind is parameter.KEYWORD_ONLY
        lines += ["*"] if is_named and not any(line.startswith("*") for line in lines) else []
        lines.append(re.sub(r" at 0x[0-9a-f]+", "", text))
    return lines


def _lines(value: Any) -> list[str]:
    """The kind of a value, and what a caller may rely on."""
    value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    if inspect.isroutine(value):
        return ["function", *_parameters(value)]
    if isinstance(value, (bool, int, float)):
        return [f"{type(value).__name__} {value!r}"]
    return [type(value).__name__, *(sorted(map(str, value)) if isinstance(value, dict) else ())]


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("npu_kernels")


def _of_class(path: str, kind: Any) -> Entries:
    """A class: its bases of other packages, fields and properties; its arguments; its members."""
    ours = [base for base in kind.__mro__ if _is_ours(base)]
    bases = {base.__name__ for own in ours for base in own.__bases__ if not _is_ours(base)}
    is_record = dataclasses.is_dataclass(kind)
    fields = [field.name for field in dataclasses.fields(kind)] if is_record else []
    fields += getattr(kind, "_fields", [])  # of a NamedTuple
    lines = ["class", *(f"base {name}" for name in sorted(bases - {"object"}))]
    lines += [f"field {name}" for name in fields]
    entries: Entries = {path: lines}
    makers = {"__init__", "__new__"} if not issubclass(kind, enum.Enum) else set()
    if any(makers & vars(base).keys() for base in ours):
        entries[f"{path}()"] = _parameters(kind)
    members = {name: value for base in reversed(ours) for name, value in vars(base).items()}
    for name, value in sorted(members.items()):
        if name in fields or (name.startswith("_") and not PROTOCOL.fullmatch(name)):
            continue
        if isinstance(value, (property, functools.cached_property)):
            lines.append(f"property {name}")
        elif _is_ours(value) or not inspect.isroutine(value):  # scikit-learn adds methods
            entries[f"{path}.{name}"] = _lines(value)
    return entries


def _of_command(module: str, main: Callable[[list[str]], Any]) -> Entries:
    """The options of a command."""
    entries: Entries = {}

    def read(parser: argparse.ArgumentParser, arguments: Any) -> None:
        for action in parser._actions[1:]:  # without --help
            facts = {"nargs": action.nargs, "choices": action.choices, "default": action.default}
            lines = [f"{key} {value!r}" for key, value in facts.items() if value is not None]
            name = "/".join(action.option_strings) or action.dest
            entries[f"python -m {module} {name}"] = ["option", *lines]
        raise SystemExit

    patch = mock.patch.object(argparse.ArgumentParser, "parse_args", read)
    with patch, contextlib.suppress(SystemExit):
        main([])
    return entries


def read() -> Entries:
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(entries: Entries) -> None:
    FILE.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def differences(old: Entries, new: Entries) -> list[str]:
    """What was added, removed and changed, a line for each name."""
    lines = [f"removed {name}" for name in old if name not in new]
    lines += [f"added {name}: {', '.join(new[name])}" for name in new if name not in old]
    for name in old.keys() & new.keys():
        marks = [line for line in difflib.ndiff(old[name], new[name]) if line[0] in "+-"]
        lines += [f"changed {name}: {', '.join(marks)}"] if marks else []
    return sorted(lines)
