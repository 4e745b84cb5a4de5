"""The error catalogue: one class for each mistake a user can make.

Every message answers four questions, in this order: *where* it happened (file, line and a caret
in the user's own function, or the name of the argument), what was *found*, what is *allowed*, and
what to write *instead*.  The texts are class attributes, so that the catalogue reads as a table
and each class has a golden message in the tests.

A class says in its own sentence what was found; the code that raises it gives names, sizes and
values.  Classes of one subject have a common base, for who wants to catch them all; a base without
texts is never raised itself.  Mistakes that only FlexAttention's interface knows are in
`flexfa4.flex.errors`.

What this module deliberately does not do: decide when something is wrong.  It is a leaf that every
layer may import.  ``assert`` is kept for our own bugs; everything a user can cause is raised from
here.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch


@dataclass(frozen=True)
class Where:
    """A place in the user's source.

    Attributes:
        file: path of the file, ``<stdin>`` or ``<text>`` for the text form.
        line: line number, counted from 1.
        source: the text of that line (empty when the source is not available).
        column: first column to point at, counted from 0.
        width: number of columns to point at.
        function: name of the function that contains the line.
    """

    file: str
    line: int
    source: str = ""
    column: int = 0
    width: int = 0
    function: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        if self.function:
            place += f", in {self.function}"
        if not self.source.strip():
            return place
        indent = len(self.source) - len(self.source.lstrip())
        text = self.source.strip()
        start = max(self.column - indent, 0)
        width = min(max(self.width, 1), max(len(text) - start, 1))
        return f"{place}\n    {text}\n    {' ' * start}{'^' * width}"


class FlexFA4Error(Exception):
    """Base of every error that FlexFA4 raises.

    Subclasses fill ``found``, ``allowed`` and ``instead`` with ``str.format`` templates; the
    keyword arguments of the constructor are the fields of those templates and stay readable in
    ``fields``.
    """

    found: ClassVar[str] = "something unexpected"
    allowed: ClassVar[str] = ""
    instead: ClassVar[str] = ""

    def __init__(self, *, where: Where | str | None = None, **fields: Any) -> None:
        self.where = where
        self.fields = fields
        if torch.compiler.is_dynamo_compiling():  # it can follow neither a message nor super()
            torch._dynamo.graph_break(msg=_message(type(self), fields))
        super().__init__(self._compose())

    def _compose(self) -> str:
        lines = [self.found.format(**self.fields)]
        if self.where is not None:
            lines.append(f"  where:   {self.where}".replace("\n", "\n  "))
        for label, template in (("allowed:", self.allowed), ("instead:", self.instead)):
            if template:
                text = template.format(**self.fields).replace("\n", "\n           ")
                lines.append(f"  {label} {text}")
        return "\n".join(lines)

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.where, self.fields))


def _message(kind: type[FlexFA4Error], fields: dict[str, Any]) -> str:
    return str(kind(**fields))


# Dynamo has Python run it.  torch.compiler.assume_constant_result sets this, and loads Dynamo.
_message._dynamo_marked_constant = True  # type: ignore[attr-defined]


def describe(value: Any) -> str:
    """Return how messages name a value: ``3``, ``a list``, ``a Tensor of shape (2, 3)``."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return reprlib.repr(value)
    kind = type(value).__name__
    named = f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
    shape = getattr(value, "shape", None)
    return named if shape is None else f"{named} of shape {tuple(shape)}"


def _rebuild(kind: type[FlexFA4Error], where: Where | str | None, fields: dict[str, Any]) -> Any:
    return kind(where=where, **fields)


# ---- tracing ------------------------------------------------------------------------------------


class TraceError(FlexFA4Error):
    """A mod could not be turned into a graph."""


class TracedBoolError(TraceError, TypeError):
    """``if``, ``and``, ``or``, ``not`` or a chained comparison on a traced value."""

    found = "{construct} asks for one True or False, but `{expression}` has a value for each score"
    allowed = "&, |, ~ on conditions, and torch.where(condition, a, b) to choose between values"
    instead = "{rewrite}"


class ModTruthError(TraceError, TypeError):
    """``and``, ``or``, ``not`` or ``if`` on a mod itself, where they would drop an operand."""

    found = "{construct} asks for one True or False, but `{expression}` is a {kind}, a function"
    allowed = (
        "&, |, ~ on masks, flexfa4.compose(first, second) for score mods, and `is None` to ask"
        " whether there is a mod"
    )
    instead = "{rewrite}"


class TracedNumberError(TraceError, TypeError):
    """``int()``, ``float()``, ``range()`` ... on a value that differs for each score."""

    found = "{construct} asks for one number, but `{expression}` has a value for each score"
    allowed = "operators and torch functions, which apply to every score"
    instead = "{rewrite}"


class UnsupportedFunctionError(TraceError, NotImplementedError):
    """A torch function or tensor method outside the IR's vocabulary."""

    found = "{name} is not available inside a mod"
    allowed = "{names}"
    instead = "{rewrite}"


class UnknownAttributeError(TraceError, AttributeError):
    """An attribute that values of a mod do not have."""

    found = "a value of the mod has no attribute `{name}`"
    allowed = "the element-wise methods of torch tensors, and dtype, shape, ndim"
    instead = "{rewrite}"


class NotAFunctionError(TraceError, TypeError):
    """Something given as a mod that cannot be called."""

    found = "a mod was given as {value}"
    allowed = "a function, a text such as 'q >= kv', or what flexfa4.trace and parse return"
    instead = "{rewrite}"


class ArityError(TraceError, TypeError):
    """A mod with the wrong number of parameters."""

    found = "{name} takes {count} parameters"
    allowed = "score_mod(score, b, h, q_idx, kv_idx) with 5, mask_mod(b, h, q_idx, kv_idx) with 4"
    instead = "{rewrite}"


class ResultError(TraceError, TypeError):
    """A mod that returns the wrong type, dtype or shape."""

    found = "{name} returned {result}"
    allowed = "{expected}"
    instead = "{rewrite}"


class OperandError(TraceError, TypeError):
    """An operation on dtypes or lengths that do not go together.

    What is allowed follows from the operation's row in the table of operations.
    """

    found = "{name} was applied to {operands}"
    allowed = "{expected}"
    instead = "{rewrite}"


class IndexingError(TraceError, IndexError):
    """A captured tensor indexed in a way that has no meaning for one score."""

    found = "{name} was indexed with {index}"
    allowed = "{expected}"
    instead = "{rewrite}"


class DataDependentShapeError(TraceError, TypeError):
    """An operation whose result's shape depends on values."""

    found = "{name} gives a result whose shape depends on values"
    allowed = "element-wise functions and torch.where(condition, a, b), which keep the shape"
    instead = "{rewrite}"


class CaptureError(TraceError, TypeError):
    """A captured value that cannot be followed from one call to the next."""

    found = "{name} is {kind}"
    allowed = "ints, floats, bools, tensors, functions, and containers or objects made of these"
    instead = "{rewrite}"


class OutsideModError(TraceError, TypeError):
    """A value that exists for each score, used where there are no scores."""

    found = "{name} has a value in a call of attention only, and was used outside of one"
    allowed = "scores, indices, q_len, kv_len, num_heads and num_kv_heads inside mods"
    instead = (
        "query.shape[2] for q_len, key.shape[2] for kv_len, query.shape[1] for num_heads,"
        " key.shape[1] for num_kv_heads"
    )


class ChangedCaptureError(CaptureError):
    """A captured value that the mod itself changes."""

    found = "{name} is {change} inside the mod, which is called once and not for every score"
    allowed = "captured values that the mod reads, and local variables for new ones"


# ---- text form ----------------------------------------------------------------------------------


class TextError(FlexFA4Error):
    """A text mod that cannot be read."""


class TextSyntaxError(TextError, ValueError):
    """Text that the grammar refuses.

    The sentences stand beside the grammar, in its tables of characters and tokens: there is one for
    each thing that can stand in a wrong place.
    """

    found = "{problem}"
    allowed = "{expected}"
    instead = "{rewrite}"


class TextTooLongError(TextSyntaxError):
    """A text of more characters than are read."""

    found = "the text has {length:,} characters"
    allowed = "at most {limit:,} characters"
    instead = "pass a function, or put tables of numbers into a tensor"


class AmbiguousOperatorError(TextSyntaxError):
    """``&``, ``|`` or ``^`` beside a comparison, which Python does not read as it looks."""

    found = "`{operator}` stands beside a comparison, and Python applies it before the comparison"
    allowed = "parentheses that say which is applied first"
    instead = "{rewrite}\nor, which is how Python reads it: {as_python}"


class NameTakenError(TextSyntaxError):
    """A name that is assigned or declared although it means something already."""

    found = "{name} cannot be {use}: it has a meaning already"
    allowed = "names of your own, each declared once and before it is read"
    instead = "{rewrite}"


class FunctionArgumentsError(TextSyntaxError):
    """A function of the text form called with arguments that it does not take."""

    found = "these arguments do not fit {name}()"
    allowed = "{usage}"
    instead = "call it as {usage}"


class UnknownNameError(TextError, NameError):
    """A name in a text mod that means nothing."""

    found = "`{name}` is not known here"
    allowed = "{names}"
    instead = "{rewrite}"


class BindingError(TextError, TypeError):
    """A binding of a text mod that is missing, unused or of the wrong kind."""


class UnusedBindingError(BindingError):
    """A binding that the text does not read."""

    found = "the binding `{name}` is never read"
    allowed = "bindings that the text reads"
    instead = "leave it out, or spell it right"


class ReservedBindingError(BindingError):
    """A binding under a name that texts have for something else."""

    found = "the binding `{name}` is never read: in a text, `{name}` has a meaning of its own"
    allowed = "bindings that the text reads"
    instead = "bind it under another name"


class MissingBindingError(BindingError):
    """A name that the text declares and reads, and that was given no value."""

    found = "{name} is declared in the text but was given no value"
    allowed = "a value for every declared name that the result reads"
    instead = "pass {name}=... besides the text"


class BindingTypeError(BindingError):
    """A binding of a type that texts cannot read."""

    found = "the binding `{name}` is {kind}"
    allowed = "a dense tensor (not complex), a list of numbers, an int of 64 bits, a float, a bool"
    instead = "{rewrite}"


class DeclarationMismatchError(BindingError):
    """A binding that is not what the text declares."""

    found = "`{name}` is declared as {declared}, but bound to {bound}"
    allowed = "a value that fits {declared}"
    instead = "bind another value, or correct the declaration"


# ---- calls --------------------------------------------------------------------------------------


class ArgumentError(FlexFA4Error, ValueError):
    """An argument of a public function that is wrong by itself.

    What is allowed and what to write belong to the parameter, and stand where it is checked.
    """

    found = "{name} is {found_value}"
    allowed = "{expected}"
    instead = "{rewrite}"


class ShapeMismatchError(FlexFA4Error, ValueError):
    """Tensors whose shapes do not go together."""


class RankError(ShapeMismatchError):
    """query, key or value of other than four dimensions."""

    found = "{name} has shape {shape}"
    allowed = "four dimensions: (batch, heads, length, head dimension)"
    instead = "{rewrite}"


class EmptyDimensionError(ShapeMismatchError):
    """No heads, or a head dimension of zero."""

    found = "{name} has size 0: {shapes}"
    allowed = "at least one head, and head dimensions above 0; batches and lengths may be 0"
    instead = "give query, key and value a size above 0 in dimension {dim}"


class SizesDifferError(ShapeMismatchError):
    """Two tensors that differ where they have to be of one size."""

    found = "{first} and {second} differ in {what}: {shapes}"
    allowed = "the same {what} in {first} and {second}"
    instead = "{rewrite}"


class HeadsDoNotDivideError(ShapeMismatchError):
    """Query heads that are no multiple of the key heads."""

    found = "{q_heads} query heads do not divide among {kv_heads} key heads: {shapes}"
    allowed = "query heads that are a multiple of the key heads (grouped-query attention)"
    instead = "{rewrite}"


class BatchesDifferError(ShapeMismatchError):
    """A batch of keys that neither is that of the queries nor serves all of them."""

    found = "a batch of {q_batch} in query and of {kv_batch} in key: {shapes}"
    allowed = "one batch for all, or 1 in both key and value"
    instead = "{rewrite}"


class SinkShapeError(ShapeMismatchError):
    """A sink that is not one logit for each query head."""

    found = "sink has shape {shape} beside {heads} query heads"
    allowed = "a tensor of shape ({heads},): one logit for each query head"
    instead = "{rewrite}"


class TokensShapeError(ShapeMismatchError):
    """Tokens that are not as many as the canvas holds."""

    found = "the tokens have shape {shape}"
    allowed = "(..., {length}, D), which is what the canvas holds"
    instead = "pass the canvas that the tokens fill, and tokens with their features last"


class DTypeError(FlexFA4Error, TypeError):
    """A dtype that is not supported, or dtypes that do not go together."""


class DTypesDifferError(DTypeError):
    """Tensors that need one dtype and have several."""

    found = "dtypes differ ({dtypes})"
    allowed = "one dtype for {names}"
    instead = "{rewrite}"


class UnsupportedDTypeError(DTypeError):
    """A dtype that attention does not compute in."""

    found = "{name} of dtype {dtype}"
    allowed = "{dtypes}"
    instead = "{rewrite}"


class DeviceError(FlexFA4Error, ValueError):
    """Tensors on devices that do not go together."""

    found = "{name} is on {device}, {other} on {other_device}"
    allowed = "one device for all tensors of a call, captured ones included"
    instead = "{rewrite}"


class NoValuesError(DeviceError):
    """Tensors on the meta device, where there is nothing to compute with."""

    found = "{what} on meta, whose tensors hold no values"
    allowed = "devices that compute, such as cpu"


class FakeBlockMaskError(FlexFA4Error, ValueError):
    """A block mask made of fake tensors, where its blocks are asked for."""

    found = "the block mask was made under fake tensors, so the kinds of its blocks are not known"
    allowed = "attention on fake tensors of the same mode"
    instead = "block_mask = create_block_mask(...) where tensors hold values"


class BlockMaskMismatchError(FlexFA4Error, ValueError):
    """A BlockMask made for other sizes than those of the call."""


class BlockMaskLengthsError(BlockMaskMismatchError):
    """A BlockMask made for other lengths."""

    found = (
        "the block mask was made for q_len={made_q_len}, kv_len={made_kv_len},"
        " but query has length {q_len} and key {kv_len}"
    )
    allowed = "the lengths that it was made for"
    instead = "{rewrite}"


class BlockMaskCountError(BlockMaskMismatchError):
    """A BlockMask made for another number of batches or heads."""

    found = "the block mask was made for {name}={made}, but query has {count}"
    allowed = "{name}={count}, or {name}=None for a mask that does not read {reads}"
    instead = "{rewrite}"


class BlockMaskIndexError(FlexFA4Error, IndexError):
    """An index of a BlockMask that picks nothing."""

    found = "the block mask has {count} {name}, but was indexed with {index}"
    allowed = "{expected}"
    instead = "block_mask[batch, head, first:last], counted from 0"


class MaskReadsBatchError(FlexFA4Error, ValueError):
    """A mask that reads ``b`` or ``h`` although no batch or head count was given."""

    found = "the mask reads `{name}`, but {argument} was not given"
    allowed = "{argument}=None only for masks that are the same for every {what}"
    instead = "{rewrite}"


class MaskReadsKeyHeadsError(FlexFA4Error, ValueError):
    """A block mask of a mask that reads ``flexfa4.num_kv_heads``."""

    found = "the mask reads `num_kv_heads`, which is known in a call of attention only"
    allowed = "num_kv_heads in masks that attention is given as functions"
    instead = "attention(query, key, value, block_mask=mask)"


class StaleBlockMaskError(FlexFA4Error, RuntimeError):
    """A BlockMask used after a value it was made from has changed."""

    found = "{name} changed after this BlockMask was made from it"
    allowed = "a BlockMask as long as the values that its mask reads stay as they were"
    instead = "block_mask = {rewrite}"


class PickleFormatError(FlexFA4Error, ValueError):
    """A pickled BlockMask or Mod that a release with another format wrote."""

    found = "a pickled {what} has format {found_format}, but this release reads format {format}"
    allowed = "pickles of releases that write format {format}"
    instead = "make the {what} again, or read it with the release that wrote it"


class DamagedPickleError(FlexFA4Error, ValueError):
    """A pickled BlockMask or Mod whose parts do not go together."""

    found = "a pickled {what} is damaged: {problem}"
    allowed = "pickles as they were written"
    instead = "make the {what} again"


class OutOfRangeError(FlexFA4Error, IndexError):
    """A captured tensor read outside its bounds on a visible score."""

    load: Any = None  # the node that read it, for the place in the user's source

    found = "{tensor} has size {size} in dimension {dim}, but was read at index {index}"
    allowed = "indices from {low} to {high}, and any index where the mask is False"
    instead = "{rewrite}"


class MaskOutOfRangeError(OutOfRangeError):
    """A captured tensor read outside its bounds by a mask."""

    found = OutOfRangeError.found + "; these sizes need {needed}"
    allowed = "indices from {low} to {high}, for a mask reads its tensors for every score"


class BackendError(FlexFA4Error, RuntimeError):
    """A backend that does not exist."""

    found = "there is no backend {backend!r}"
    allowed = "{names}"
    instead = 'backend="auto", and `flexfa4 doctor` in a shell lists what this machine can run'


class SecondDerivativeError(FlexFA4Error, NotImplementedError):
    """A derivative of a derivative of attention."""

    found = "a second derivative through flexfa4.attention was asked for"
    allowed = "first derivatives with respect to q, k, v, sink and captured tensors"
    instead = (
        "call .detach() on the first gradients, or compute this part with a dense softmax in torch"
    )


class TransformError(FlexFA4Error, NotImplementedError):
    """A transform of ``torch.func``, or a forward-mode derivative, that attention does not have."""

    found = "{transform} was asked for"
    allowed = "{expected}"
    instead = "{rewrite}"


class MappedAxisError(FlexFA4Error, ValueError):
    """``torch.func.vmap`` over something that has no axis to map."""

    found = "torch.func.vmap maps over {what}"
    allowed = "query, key, value, sink and tensors that mods capture"
    instead = "{rewrite}"


# ---- command line and demo ----------------------------------------------------------------------


class MissingPackageError(FlexFA4Error, ImportError):
    """An optional package that a feature needs and that is not installed."""

    found = "{feature} needs the package {package}, which is not installed"
    allowed = "everything else without it"
    instead = "pip install 'flexfa4[{extra}]'"


class DemoProcessError(FlexFA4Error, RuntimeError):
    """A training process of the demo that ended without a result."""

    found = "the {side} side of the demo ended without a result (exit code {code})"
    allowed = "no early end: a traceback above is a bug, code -9 most often a lack of memory"
    instead = "for want of memory: flexfa4 demo --seq-len 1024, which needs a quarter of it"
