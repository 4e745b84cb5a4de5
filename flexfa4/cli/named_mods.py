"""Mods that the command line names: a variant, ``module:function``, or text; each with settings.

``--set name=value`` gives a text its values and a variant its parameters.  A value is written as in
Python (``0.5``, ``True``, ``(7, 7)``, ``[0, 0, 1]``) and read as a literal, never evaluated; a list
becomes a tensor where one is taken.

Whatever cannot be resolved is an error with advice for the command line.  Nothing is computed here.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

import flexfa4
from flexfa4 import variants
from flexfa4.combine import MaskMod, ScoreMod
from flexfa4.errors import ArgumentError, TextError, UnknownNameError
from flexfa4.variant_examples import Example, example_of
from flexfa4.variant_index import Entry, Parameter, find

_MOST_NAMES: Final = 24  # shown in a message


@dataclass(frozen=True)
class Named:
    """The mod that a user named.

    Attributes:
        mod: function or `Mod`.
        example: of the library, where the mod has the parameters of it and none of the user's.
    """

    mod: Any
    example: Example | None = None

    def note(self) -> str:
        """Return what to say of parameters that are not the user's, "" where they are."""
        if self.example is None:
            return ""
        lines = "\n    ".join(self.example.lines)
        return f"with example parameters (--set gives others):\n    {lines}"


def named(text: str, settings: Iterable[str], command: str) -> Named:
    """Return the mod that an argument names.

    Args:
        text: a variant's name, ``module:function``, or a text mod.
        settings: ``name=value``, as written.
        command: of the command line, for advice.

    Raises:
        ArgumentError: there is no such mod, the settings do not fit it, or it lacks data.
        TextError: a text cannot be read.
    """
    values: dict[str, str] = {}
    for name, value in map(setting, settings):
        if name in values:
            raise ArgumentError(
                name="--set",
                found_value=f"{name}={values[name]} and {name}={value}",
                expected="one value for each name",
                rewrite=f"--set {name}={value}",
            )
        values[name] = value
    return Request(text, values, command).resolve()


@dataclass(frozen=True)
class Request:
    """A mod as the user named it.

    Attributes:
        text: a variant's name, ``module:function``, or a text mod.
        settings: values by name, as they were written.
        command: of the command line, for advice.
    """

    text: str
    settings: Mapping[str, str]
    command: str

    def resolve(self) -> Named:
        """Return the mod.

        A variant without settings is its example where it has no data by itself, or is to be drawn.

        Raises:
            ArgumentError: there is no such mod, the settings do not fit it, or it lacks data.
            TextError: a text cannot be read.
        """
        if re.fullmatch(r"[\w.]+:[\w.]+", self.text):
            if self.settings:
                self._refuse_settings()
            return Named(_imported(*self.text.split(":"), command=self.command))
        entry = find(self.text)
        if entry is None:
            return Named(self._parsed())
        example = example_of(entry.name)
        wanted = not example.is_default if self.command == "plot" else entry.missing() is not None
        if wanted and not self.settings:
            return Named(example.made(), example)
        return Named(self._variant(entry))

    def _refuse_settings(self) -> NoReturn:
        raise ArgumentError(
            name="--set",
            found_value=", ".join(f"{name}={value}" for name, value in self.settings.items()),
            expected="values for the names in a text mod, or a variant's parameters",
            rewrite="leave --set out: a function brings its own values",
        )

    def _variant(self, entry: Entry) -> Any:
        """Return the variant with the parameters that were set, its defaults elsewhere."""
        parameters = {parameter.name: parameter for parameter in entry.parameters}
        values = {}
        for name, text in self.settings.items():
            if name not in parameters:
                self._refuse_parameter(entry, name, text)
            values[name] = _argument(parameters[name], text)
        made = _made(entry, values) if values else getattr(variants, entry.name)
        missing = entry.missing(made)
        if missing is not None:
            self._say_how_to_give_data(entry, missing)
        return made

    def _refuse_parameter(self, entry: Entry, name: str, text: str) -> NoReturn:
        names = [parameter.name for parameter in entry.parameters]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        raise ArgumentError(
            name="--set",
            found_value=f"{name}={text}",
            expected=f"parameters of {entry.signature}" if names else "nothing: no parameters",
            rewrite=f"--set {near[0]}={text}" if near else "leave --set out",
        )

    def _say_how_to_give_data(self, entry: Entry, missing: ArgumentError) -> NoReturn:
        lacking = missing.fields["name"].rpartition(".")[2]
        advice = (
            f"in my_mods.py: from flexfa4.variants import {entry.variant.__name__}; mod = ...\n"
            f"and then: flexfa4 {self.command} my_mods:mod\n"
            f"or, with a list for the tensor: --set '{lacking}=[...]'"
        )
        fields = {**missing.fields, "rewrite": f"{missing.fields['rewrite']}\n{advice}"}
        raise ArgumentError(**fields) from None

    def _parsed(self) -> Any:
        """Parse a text.

        Raises:
            ArgumentError: it is no text, but a variant's name misspelt, or variants in Python.
            TextError: the text cannot be read.
        """
        bindings = {name: _binding(name, text) for name, text in self.settings.items()}
        try:
            return flexfa4.parse(self.text, **bindings)
        except TextError as error:
            name = error.fields["name"] if isinstance(error, UnknownNameError) else ""
            self._refuse_variants(name)
            if not name:
                raise
            rewrite = error.fields["rewrite"].replace(
                f"flexfa4.parse(text, {name}=...)", f"--set {self._example(name)}"
            )
            fields = {**error.fields, "rewrite": rewrite}
            raise UnknownNameError(where=error.where, **fields) from None

    def _example(self, name: str) -> str:
        """Return a setting for a name of the text: a number, or lists where it has indices."""
        indices = re.search(rf"\b{re.escape(name)}\s*\[([^]]*)]", self.text)
        if indices is None:
            return f"{name}=0.5"
        value = "0.5"
        for _ in indices[1].split(","):
            value = f"[{value}, {value}]"
        return f"'{name}={value}'"

    def _refuse_variants(self, unknown: str) -> None:
        """Refuse a text that means variants, exactly named or by its `unknown` name nearly."""
        names = [word for word in re.findall(r"\w+", self.text) if word in variants.__all__]
        names += difflib.get_close_matches(unknown, variants.__all__, n=1, cutoff=0.75)
        if unknown and self.text.isidentifier():
            rewrite = f"flexfa4 {self.command} {names[0] if names else 'causal'}"
        elif names:
            imported = ", ".join(dict.fromkeys(names))
            rewrite = (
                f"in my_mods.py: from flexfa4.variants import {imported}; mod = {self.text}\n"
                f"and then: flexfa4 {self.command} my_mods:mod"
            )
            entry = find(names[0])
            if re.fullmatch(r"\w+\(.*\)", self.text) and entry and entry.parameters:
                setting = f"--set {entry.parameters[0].name}=..."
                rewrite += f"\nor: flexfa4 {self.command} {entry.name} {setting}"
        else:
            return
        raise ArgumentError(
            name="mod",
            found_value=repr(self.text),
            expected="a text, module:function, or a name that `flexfa4 variants` lists",
            rewrite=rewrite,
        ) from None


def setting(text: str) -> tuple[str, str]:
    """Split ``name=value``.

    Raises:
        ArgumentError: it has no name or no value.
    """
    name, _, value = text.partition("=")
    if not (name.isidentifier() and value):
        raise ArgumentError(
            name="--set",
            found_value=repr(text),
            expected="a name, an equals sign and a value",
            rewrite="--set slope=0.5",
        )
    return name, value


def _literal(text: str) -> Any:
    """Return the value that a Python literal stands for, None for any other text."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return None


def _binding(name: str, text: str) -> Any:
    """Return the value of a name in a text mod: a number, or a tensor for a list."""
    value = _literal(text)
    if isinstance(value, list):
        return _tensor(name, value)
    if isinstance(value, (int, float)):
        return value
    _refuse_value(name, text, "a number, or a list of numbers for a tensor", f"--set {name}=0.5")


def _argument(parameter: Parameter, text: str) -> Any:
    """Return the value of a variant's parameter; the variant itself checks it further."""
    value = _literal(text)
    if isinstance(value, list) and parameter.takes("Tensor"):
        return _tensor(parameter.name, value)
    if isinstance(value, tuple) and parameter.takes("Tensor") and not parameter.takes("tuple"):
        written = f"--set '{parameter.name}={list(value)}'"
        _refuse_value(parameter.name, text, "a list for a tensor, in [ ]", written)
    if parameter.takes("str"):  # a mod by its name or as text
        named = find(text)
        if named is None and text.isidentifier():
            near = difflib.get_close_matches(text, variants.__all__, n=1) or ["causal"]
            kinds = "a text, or a name that `flexfa4 variants` lists"
            _refuse_value(parameter.name, text, kinds, f"--set {parameter.name}={near[0]}")
        return text if named is None else getattr(variants, named.name)
    if value is None:
        example = "(7, 7)" if parameter.takes("tuple") else "[0, 0, 1]"
        kinds = "a number, True or False, a tuple such as (7, 7), or a list"
        _refuse_value(parameter.name, text, kinds, f"--set '{parameter.name}={example}'")
    return value


def _made(entry: Entry, values: Mapping[str, Any]) -> Any:
    """Return the variant with these parameters; advice on a tensor's numbers is for --set."""
    try:
        return entry.variant(**values)
    except ArgumentError as error:
        name = error.fields["name"].rpartition(".")[2]
        tensor, advice = values.get(name), error.fields["rewrite"]
        if not isinstance(tensor, torch.Tensor):
            raise
        for kind in ("float", "long", "bool"):
            if f".{kind}()" in advice:
                numbers = getattr(tensor, kind)().tolist()
                fields = {**error.fields, "rewrite": f"--set '{name}={numbers}'"}
                raise ArgumentError(**fields) from None
        raise


def _tensor(name: str, values: list[Any]) -> torch.Tensor:
    try:
        return torch.tensor(values)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        _refuse_value(
            name, repr(values), "numbers in lists of equal lengths", f"--set '{name}=[0, 0, 1]'"
        )


def _refuse_value(name: str, text: str, expected: str, rewrite: str) -> NoReturn:
    raise ArgumentError(
        name="--set", found_value=f"{name}={text}", expected=expected, rewrite=rewrite
    )


def _imported(module: str, path: str, *, command: str) -> Callable[..., Any]:
    """Return ``path`` of ``module``, looked for in the current folder too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # the user's module may do anything when imported
        problem = f"{module}:{path}, which gives {type(error).__name__}: {error}"
    else:
        if callable(found):
            return found  # type: ignore[no-any-return]
        problem = f"{module}:{path}, {type(found).__name__!r} is not callable"
    held = _mods_of(module)
    near = difflib.get_close_matches(path, held, n=1, cutoff=0.0)
    raise ArgumentError(
        name="mod",
        found_value=problem,
        expected=f"what {module} holds: {', '.join(held)}"
        if held
        else "module:function of a module that Python can import from here",
        rewrite=f"flexfa4 {command} {module}:{near[0]}"
        if near
        else f"flexfa4 {command} my_mods:window, where my_mods.py is in this folder",
    )


def _mods_of(module: str) -> list[str]:
    """Return the names in an imported module that may be meant as mods: not what it imports."""
    held = vars(sys.modules[module]) if module in sys.modules else {}
    return [
        name
        for name, value in held.items()
        if isinstance(value, (MaskMod, ScoreMod, flexfa4.Mod))
        or (inspect.isfunction(value) and value.__module__ == module)
    ][:_MOST_NAMES]
