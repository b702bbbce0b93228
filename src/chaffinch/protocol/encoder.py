"""Encoder compiler: compiles the description of a message, for one version, into one flat function `encode(message, out) -> [buffers]`.

`out` is a bytearray with the bytes before the body (frame length, header). `records` are not copied: they end the current buffer, are added
to the list unchanged, and a new buffer begins after them.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error as LayoutError
from struct import pack
from typing import Any, Final

from chaffinch.protocol.primitives import (
    Array,
    Field,
    Fixed,
    Records,
    RecordsType,
    String,
    Struct,
    Structure,
    Uuid,
    Variable,
    uvarint,
)
from chaffinch.protocol.source import NO_FIELD, Leaf, Source
from chaffinch.protocol.violations import UnencodableMessage
from chaffinch.records.file_slice import FileSlice, Part

_FAILURES: Final = (LayoutError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions of compiled code for invalid values; UnicodeEncodeError is a ValueError."""


def compile_encoder(cls: type[Structure], version: int) -> Any:
    """The encode function of `cls` in `version`; raises UnencodableMessage naming the field."""
    return _EncoderCompiler(cls, version).compile()


def records_pieces(records: Records) -> tuple[list[Part], int]:
    """The non-empty parts of a `records` value, and their size in bytes."""
    pieces: list[Part] = []
    size = 0
    for piece in records if isinstance(records, list) else [records]:
        if not isinstance(piece, bytes | bytearray | memoryview | FileSlice) or (isinstance(piece, memoryview) and piece.itemsize != 1):
            raise TypeError(f"{piece!r} is not bytes")
        if piece:
            pieces.append(piece)
            size += len(piece)
    return pieces, size


class _EncoderCompiler:
    def __init__(self, cls: type[Structure], version: int) -> None:
        self.cls = cls
        self.version = version
        self.is_flexible = version >= cls.FLEXIBLE_SINCE
        self.source = Source(scope={"uvarint": uvarint, "pack": pack, "records_pieces": records_pieces, "FAILURES": _FAILURES})

    def compile(self) -> Any:
        source, cls, version = self.source, self.cls, self.version
        source.scope["explain"] = self.explain
        start = Leaf("message", "")
        source.add(0, "def encode(message, out):", start)
        source.add(1, "parts = [out]", start)
        source.add(1, "try:", start)
        source.add(2, "pass", start)  # A version may have no field.
        self.structure(2, cls, "message", "")
        source.add(1, "except FAILURES as failure:", start)
        source.add(2, "raise explain(failure) from failure", start)
        source.add(1, "return parts if out else parts[:-1] or parts", start)
        return source.function("encode", f"{cls.__name__} v{version} encoder")

    def explain(self, failure: Exception) -> UnencodableMessage:
        """Convert an exception of the compiled function to UnencodableMessage, naming the wrong value."""
        leaves, variables = self.source.leaves_of(failure.__traceback__)
        for leaf in leaves:
            if leaf.field is NO_FIELD:
                continue
            owner = variables.get(leaf.owner)
            if hasattr(owner, leaf.field.name):
                reason = _misfit(leaf.field, getattr(owner, leaf.field.name), self.version)
            else:
                reason = f"{owner!r} has no such field"
            if reason:
                return UnencodableMessage(self.cls.__name__, self.version, leaf.path.format_map(variables), reason)
        return UnencodableMessage(self.cls.__name__, self.version, leaves[0].path.format_map(variables), str(failure))

    # -- structures ---------------------------------------------------------------------------------------------------------------

    def structure(self, depth: int, cls: type[Structure], owner: str, path: str) -> None:
        run: list[Leaf] = []
        tagged: list[Leaf] = []
        for field in cls.FIELDS:
            leaf = Leaf(f"{path}.{field.name}" if path else field.name, owner, field)
            if not field.exists_in(self.version):
                self.refuse_unknown(depth, leaf)
            elif field.is_tagged_in(self.version):
                tagged.append(leaf)
            elif isinstance(field.kind, Fixed):
                run.append(leaf)
            else:
                self.fixed_run(depth, run)
                run = []
                self.value(depth, leaf, f"{owner}.{field.name}", field.is_nullable_in(self.version))
        self.fixed_run(depth, run)
        if self.is_flexible:
            self.tagged_fields(depth, tagged, Leaf(f"{path}.tagged fields" if path else "tagged fields", owner))

    def refuse_unknown(self, depth: int, leaf: Leaf) -> None:
        """An essential field that this version lacks must have its default."""
        field = leaf.field
        if field.essential:
            default = self.source.fresh("default_")
            self.source.scope[default] = field.default
            self.source.add(depth, f"if {leaf.owner}.{field.name} != {default}: raise ValueError", leaf)

    def fixed_run(self, depth: int, run: list[Leaf]) -> None:
        """Write neighbouring fields of constant width with one call."""
        if not run:
            return
        codes = "".join(leaf.field.kind.code for leaf in run if isinstance(leaf.field.kind, Fixed))
        values = ", ".join(self.fixed_value(leaf) for leaf in run)
        packer = self.source.fresh("pack_")
        self.source.scope[packer] = Layout(">" + codes).pack
        self.source.add(depth, f"out += {packer}({values})", *run)

    def fixed_value(self, leaf: Leaf) -> str:
        value = f"{leaf.owner}.{leaf.field.name}"
        return f"{value}.bytes" if leaf.field.kind is Uuid else value

    # -- values of variable size --------------------------------------------------------------------------------------------------

    def value(self, depth: int, leaf: Leaf, value: str, is_nullable: bool) -> None:
        """Write one field that is not part of a fixed run."""
        kind = leaf.field.kind
        if isinstance(kind, Fixed):
            self.fixed_run(depth, [leaf])
            return
        local = self.source.fresh("value")
        self.source.add(depth, f"{local} = {value}", leaf)
        if is_nullable:
            self.source.add(depth, f"if {local} is None:", leaf)
            self.null(depth + 1, leaf)
            self.source.add(depth, "else:", leaf)
            depth += 1
        if isinstance(kind, Variable):
            self.variable(depth, leaf, local, kind)
        elif isinstance(kind, Array):
            self.array(depth, leaf, local, kind)
        else:
            if is_nullable:
                self.source.add(depth, "out.append(1)", leaf)
            self.nested(depth, leaf, local, kind)

    def nested(self, depth: int, leaf: Leaf, local: str, kind: Struct) -> None:
        self.source.add(depth, f"if {local} is None: raise ValueError('a structure is needed')", leaf)
        self.structure(depth, kind.message, local, leaf.path)

    def null(self, depth: int, leaf: Leaf) -> None:
        kind = leaf.field.kind
        if isinstance(kind, Struct):
            encoded = b"\xff"
        elif self.is_flexible:
            encoded = b"\0"
        else:
            encoded = b"\xff" * Layout(">" + (kind.prefix if isinstance(kind, Variable) else "i")).size
        self.source.add(depth, f"out += {encoded!r}", leaf)

    def length(self, depth: int, leaf: Leaf, size: str, prefix: str) -> None:
        """Write a length or count held by variable `size`."""
        source = self.source
        if self.is_flexible:
            source.add(depth, f"if {size} < 127: out.append({size} + 1)", leaf)
            source.add(depth, f"else: out += uvarint({size} + 1)", leaf)
        else:
            source.add(depth, f"out += {source.constant('length_', _LENGTHS[prefix])}({size})", leaf)

    def variable(self, depth: int, leaf: Leaf, local: str, kind: Variable) -> None:
        source = self.source
        size = source.fresh("size")
        if kind is RecordsType:
            source.add(depth, f"{local}, {size} = records_pieces({local})", leaf)
            self.length(depth, leaf, size, kind.prefix)
            source.add(depth, f"if {size}:", leaf)
            source.add(depth + 1, f"parts += {local}", leaf)
            source.add(depth + 1, "out = bytearray()", leaf)
            source.add(depth + 1, "parts.append(out)", leaf)
            return
        if kind is String:
            source.add(depth, f"{local} = {local}.encode()", leaf)
        source.add(depth, f"{size} = len({local})", leaf)
        self.length(depth, leaf, size, kind.prefix)
        source.add(depth, f"out += {local}", leaf)

    def array(self, depth: int, leaf: Leaf, local: str, kind: Array) -> None:
        source, element = self.source, kind.element
        size = source.fresh("size")
        source.add(depth, f"{size} = len({local})", leaf)
        self.length(depth, leaf, size, "i")
        if isinstance(element, Fixed) and element is not Uuid:
            source.add(depth, f"out += pack(f'>{{{size}}}{element.code}', *{local})", leaf)
            return
        index, item = source.fresh("index"), source.fresh("item")
        path = f"{leaf.path}[{{{index}}}]"
        source.add(depth, f"for {index}, {item} in enumerate({local}):", leaf)
        here = Leaf(path, item)
        if isinstance(element, type):
            self.structure(depth + 1, element, item, path)
        elif isinstance(element, Variable):
            self.variable(depth + 1, here, item, element)
        else:
            source.add(depth + 1, f"out += {item}.bytes", here)

    # -- tagged fields ------------------------------------------------------------------------------------------------------------

    def tagged_fields(self, depth: int, tagged: list[Leaf], here: Leaf) -> None:
        """Write the tagged section: only fields that differ from their default, in ascending order of tags (KIP-482)."""
        source = self.source
        if not tagged:
            source.add(depth, "out.append(0)", here)
            return
        # Most messages have no tagged field, so that case is one line.
        tagged.sort(key=lambda leaf: leaf.field.tag or 0)
        tests = [self.differs(leaf) for leaf in tagged]
        tags, outer = source.fresh("tags"), source.fresh("outer")
        source.add(depth, f"if not ({' or '.join(tests)}): out.append(0)", here)
        source.add(depth, "else:", here)
        depth += 1
        source.add(depth, f"{tags} = []", here)
        source.add(depth, f"{outer} = out", here)
        for leaf, test in zip(tagged, tests, strict=True):
            field = leaf.field
            value = f"{leaf.owner}.{field.name}"
            source.add(depth, f"if {test}:", leaf)
            source.add(depth + 1, "out = bytearray()", leaf)
            self.value(depth + 1, leaf, value, field.is_nullable_in(self.version) and not isinstance(field.kind, Struct))
            source.add(depth + 1, f"{tags}.append({uvarint(field.tag or 0)!r} + uvarint(len(out)) + out)", leaf)
        source.add(depth, f"out = {outer}", here)
        source.add(depth, f"out += uvarint(len({tags}))", here)
        source.add(depth, f"for tag in {tags}: out += tag", here)

    def differs(self, leaf: Leaf) -> str:
        """An expression: whether a tagged field differs from its default, so that it must be sent."""
        field = leaf.field
        value = f"{leaf.owner}.{field.name}"
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.default, list):
            return f"{value} != []"
        return f"{value} != {self.source.constant('default_', field.default)}"


def _misfit(field: Field, value: Any, version: int) -> str | None:
    """Why `value` is invalid for this field, or None if it is valid."""
    if not field.exists_in(version):
        return (
            f"{value!r} needs version {field.since} or later"
            if version < field.since
            else f"{value!r} needs version {field.until} or earlier"
        )
    if value is None:
        return None if field.is_nullable_in(version) else "None is not allowed"
    kind = field.kind
    if isinstance(kind, Fixed):
        return _misfit_fixed(kind, value)
    if isinstance(kind, Array):
        return _misfit_array(kind, value)
    if kind is String and not isinstance(value, str):
        return f"{value!r} is not a string"
    if isinstance(kind, Variable) and kind.prefix == "h":
        size = len(value.encode(errors="surrogatepass"))
        return f"{size} bytes of UTF-8, limit 32767" if size > 0x7FFF else None
    return None


def _misfit_array(kind: Array, value: Any) -> str | None:
    if not isinstance(value, list | tuple) or not isinstance(kind.element, Fixed):
        return f"{value!r} is not a list"
    misfits = ((index, _misfit_fixed(kind.element, item)) for index, item in enumerate(value))
    return next((f"element {index}: {misfit}" for index, misfit in misfits if misfit), None)


def _misfit_fixed(kind: Fixed, value: Any) -> str | None:
    if kind.minimum is None or kind.maximum is None or not isinstance(value, int):
        return f"{value!r} is not a valid {kind.name}"
    if not kind.minimum <= value <= kind.maximum:
        return f"{value} does not fit {kind.name} ({kind.minimum} to {kind.maximum})"
    return None


_LENGTHS: Final = {prefix: Layout(">" + prefix).pack for prefix in "hi"}
