"""Decoder compiler: compiles the description of a message, for one version, into one flat function `decode(data, position) -> (message,
position)`.

Neighbouring fields of constant width become one `struct` call. Nested structures and arrays are inlined as loops, so that a Fetch response
of a thousand partitions costs no Python call per structure. Only strings are copied.

Every length is checked against the bytes left: constant widths by `struct` itself (struct.error), single bytes by indexing (IndexError),
runs and arrays by a comparison, arrays as count <= bytes left / minimum size of an element. In addition, all structures of one message
count against a limit, because an empty structure takes a few bytes on the wire and about a hundred in memory. So do tagged fields, which
take time, and numbers in arrays: `NUMBERS_PER_STRUCTURE` of them count as one structure.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error as LayoutError
from struct import unpack_from
from typing import Any, Final
from uuid import UUID

from chaffinch.protocol.primitives import Array, Fixed, Kind, RecordsType, String, Struct, Structure, Uuid, Variable, read_uvarint
from chaffinch.protocol.source import Leaf, Source
from chaffinch.protocol.violations import MalformedMessage

STRUCTURES_MAX: Final = 1_000_000
"""Largest number of nested structures in a message; a Metadata response for 200,000 partitions has a quarter of that."""

REQUEST_STRUCTURES_MAX: Final = 200_000
"""The limit for a request, whose sender is not trusted: each structure costs the broker's only thread some ten microseconds."""

NUMBERS_PER_STRUCTURE: Final = 8
"""A number in a list takes some forty bytes in memory. In a request it counts as a structure: most are partitions, each of which is
processed."""

_TOO_MANY: Final = f"too many structures: a request may have {REQUEST_STRUCTURES_MAX}, a response {STRUCTURES_MAX}"

_FAILURES: Final = (LayoutError, IndexError, ValueError)
"""Exceptions of compiled code for invalid bytes; UnicodeDecodeError is a ValueError."""

_TAG_BYTES_MIN: Final = 2


def compile_decoder(cls: type[Structure], version: int) -> Any:
    """The decode function of `cls` in `version`; raises MalformedMessage naming field and position."""
    return _DecoderCompiler(cls, version).compile()


def least_size(kind: Kind | type[Structure], version: int, is_flexible: bool) -> int:
    """Minimum size of a value of this kind."""
    if isinstance(kind, Fixed):
        return kind.width
    if isinstance(kind, Variable):
        return 1 if is_flexible else Layout(">" + kind.prefix).size
    if isinstance(kind, Array):
        return 1 if is_flexible else 4
    message = kind.message if isinstance(kind, Struct) else kind
    fields = (field for field in message.FIELDS if field.exists_in(version) and not field.is_tagged_in(version))
    return int(is_flexible) + sum(
        1 if isinstance(field.kind, Struct) and field.is_nullable_in(version) else least_size(field.kind, version, is_flexible)
        for field in fields
    )


def skip_tagged(data: memoryview, position: int, end: int, structures_left: int = STRUCTURES_MAX) -> tuple[int, int]:
    """(position, structures_left) after a tagged section without known tags. `structures_left`: tags allowed, then tags left.

    Raises IndexError or ValueError if it is cut off or has too many.
    """
    count, position = read_uvarint(data, position)
    if count * _TAG_BYTES_MIN > end - position:
        raise ValueError(f"{count} tagged fields announced, {end - position} bytes left")
    structures_left -= count
    if structures_left < 0:
        raise ValueError(_TOO_MANY)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if position + size > end:
            raise ValueError(f"tag {tag} of {size} bytes announced, {end - position} left")
        position += size
    return position, structures_left


class _DecoderCompiler:
    def __init__(self, cls: type[Structure], version: int) -> None:
        self.cls = cls
        self.version = version
        self.is_flexible = version >= cls.FLEXIBLE_SINCE
        self.is_request = cls.__name__.endswith("Request")
        self.source = Source(
            scope={
                "read_uvarint": read_uvarint,
                "unpack_from": unpack_from,
                "UUID": UUID,
                "FAILURES": _FAILURES,
                "skip_tagged": skip_tagged,
            }
        )

    def compile(self) -> Any:
        source, cls, version = self.source, self.cls, self.version
        source.scope["explain"] = self.explain
        start = Leaf("message", "")
        source.add(0, "def decode(data, position):", start)
        source.add(1, "try:", start)
        source.add(2, "end = len(data)", start)
        source.add(2, f"structures_left = {REQUEST_STRUCTURES_MAX if self.is_request else STRUCTURES_MAX}", start)
        self.structure(2, cls, "message", "")
        source.add(2, "return message, position", start)
        source.add(1, "except FAILURES as failure:", start)
        source.add(2, "raise explain(failure) from None", start)
        return source.function("decode", f"{cls.__name__} v{version} decoder")

    def explain(self, failure: Exception) -> MalformedMessage:
        """Convert an exception of the compiled function to MalformedMessage."""
        leaves, variables = self.source.leaves_of(failure.__traceback__)
        position = variables["position"]
        field = leaves[0].path.format_map(variables)
        if isinstance(failure, LayoutError | IndexError):
            width = sum(leaf.field.kind.width for leaf in leaves if isinstance(leaf.field.kind, Fixed))
            needed = f"{width} bytes needed" if width else "a length is cut off"
            reason = f"{needed}, {max(0, variables['end'] - position)} left"
        else:
            reason = str(failure)
        return MalformedMessage(self.cls.__name__, self.version, field, position, reason)

    # -- structures ---------------------------------------------------------------------------------------------------------------

    def structure(self, depth: int, cls: type[Structure], owner: str, path: str) -> None:
        """Create an instance in variable `owner` and fill all its fields."""
        source = self.source
        new = source.constant("new_", cls)
        source.add(depth, f"{owner} = {new}.__new__({new})", Leaf(path or "message", owner))
        run: list[Leaf] = []
        tagged: list[Leaf] = []
        for field in cls.FIELDS:
            leaf = Leaf(f"{path}.{field.name}" if path else field.name, owner, field)
            if not field.exists_in(self.version) or field.is_tagged_in(self.version):
                self.set_default(depth, leaf)
                if field.exists_in(self.version):
                    tagged.append(leaf)
            elif isinstance(field.kind, Fixed):
                run.append(leaf)
            else:
                self.fixed_run(depth, run)
                run = []
                self.value(depth, leaf)
        self.fixed_run(depth, run)
        if self.is_flexible:
            self.tagged_fields(depth, tagged, Leaf(f"{path}.tagged fields" if path else "tagged fields", owner))

    def set_default(self, depth: int, leaf: Leaf) -> None:
        field = leaf.field
        value = "[]" if isinstance(field.default, list) else self.literal(field.default)
        self.source.add(depth, f"{leaf.owner}.{field.name} = {value}", leaf)

    def literal(self, value: Any) -> str:
        is_plain = value is None or isinstance(value, bool | int | float | str | bytes)
        return repr(value) if is_plain else self.source.constant("value_", value)

    def fixed_run(self, depth: int, run: list[Leaf]) -> None:
        """Read neighbouring fields of constant width with one call."""
        if not run:
            return
        source = self.source
        codes, targets, width = "", "", 0
        for leaf in run:
            field = leaf.field
            assert isinstance(field.kind, Fixed)
            codes, width = codes + field.kind.code, width + field.kind.width
            targets += f"{leaf.owner}.{field.name}, "
        unpack = source.fresh("unpack_")
        source.scope[unpack] = Layout(">" + codes).unpack_from
        source.add(depth, f"{targets}= {unpack}(data, position)", *run)
        source.add(depth, f"position += {width}", *run)
        for leaf in run:
            if leaf.field.kind is Uuid:
                target = f"{leaf.owner}.{leaf.field.name}"
                source.add(depth, f"{target} = UUID(bytes={target})", leaf)

    # -- values of variable size --------------------------------------------------------------------------------------------------

    def value(self, depth: int, leaf: Leaf) -> None:
        """Read one field that is not part of a fixed run."""
        field = leaf.field
        target = f"{leaf.owner}.{field.name}"
        is_nullable = field.is_nullable_in(self.version)
        if isinstance(field.kind, Fixed):
            self.fixed_run(depth, [leaf])
        elif isinstance(field.kind, Variable):
            self.variable(depth, leaf, target, field.kind, is_nullable)
        elif isinstance(field.kind, Array):
            self.array(depth, leaf, target, field.kind, is_nullable)
        else:
            self.nested(depth, leaf, target, field.kind, is_nullable)

    def nested(self, depth: int, leaf: Leaf, target: str, kind: Struct, is_nullable: bool) -> None:
        """A single structure; a nullable one is led by an int8, negative for null (KIP-893)."""
        source = self.source
        inner = source.fresh("message")
        if is_nullable:
            source.add(depth, "present = data[position]", leaf)
            source.add(depth, "position += 1", leaf)
            source.add(depth, f"{target} = None", leaf)
            source.add(depth, "if present < 128:", leaf)
            depth += 1
        self.structure(depth, kind.message, inner, leaf.path)
        source.add(depth, f"{target} = {inner}", leaf)

    def length(self, depth: int, leaf: Leaf, prefix: str) -> str:
        """Read a length or count into a fresh variable; -1 is null in both forms."""
        source = self.source
        size = source.fresh("size")
        if self.is_flexible:
            self.uvarint(depth, size, leaf)
            source.add(depth, f"{size} -= 1", leaf)
        else:
            unpack = source.constant("length_", _LENGTHS[prefix])
            source.add(depth, f"({size},) = {unpack}(data, position)", leaf)
            source.add(depth, f"position += {Layout('>' + prefix).size}", leaf)
        return size

    def uvarint(self, depth: int, target: str, leaf: Leaf) -> None:
        """Read an unsigned varint into `target`; nearly all have one byte."""
        source = self.source
        source.add(depth, f"{target} = data[position]", leaf)
        source.add(depth, f"if {target} < 128:", leaf)
        source.add(depth + 1, "position += 1", leaf)
        source.add(depth, "else:", leaf)
        source.add(depth + 1, f"{target}, position = read_uvarint(data, position)", leaf)

    def refuse_null(self, depth: int, leaf: Leaf, size: str, is_nullable: bool) -> None:
        """Refuse negative lengths other than -1, and null if the version does not allow it."""
        source = self.source
        if is_nullable:
            if not self.is_flexible:
                source.add(depth, f"if {size} < -1: raise ValueError(f'negative length {{{size}}}')", leaf)
            return
        source.add(depth, f"if {size} < 0: raise ValueError(f'length {{{size}}}, but null is not allowed')", leaf)

    def variable(self, depth: int, leaf: Leaf, target: str, kind: Variable, is_nullable: bool) -> None:
        source = self.source
        size = self.length(depth, leaf, kind.prefix)
        self.refuse_null(depth, leaf, size, is_nullable)
        if is_nullable:
            source.add(depth, f"if {size} < 0: {target} = None", leaf)
            source.add(depth, "else:", leaf)
            depth += 1
        stop = source.fresh("stop")
        source.add(depth, f"{stop} = position + {size}", leaf)
        source.add(depth, f"if {stop} > end: raise ValueError(f'{{{size}}} bytes announced, {{end - position}} left')", leaf)
        if kind is String:
            source.add(depth, f"{target} = str(data[position:{stop}], 'utf-8')", leaf)
        elif kind is RecordsType:
            source.add(depth, f"{target} = data[position:{stop}]", leaf)
        else:
            source.add(depth, f"{target} = bytes(data[position:{stop}])", leaf)
        source.add(depth, f"position = {stop}", leaf)

    def array(self, depth: int, leaf: Leaf, target: str, kind: Array, is_nullable: bool) -> None:
        source, element = self.source, kind.element
        size = self.length(depth, leaf, "i")
        self.refuse_null(depth, leaf, size, is_nullable)
        if is_nullable:
            source.add(depth, f"if {size} < 0: {target} = None", leaf)
            source.add(depth, "else:", leaf)
            depth += 1
        least = least_size(element, self.version, self.is_flexible)
        reason = f"f'{{{size}}} elements of at least {least} bytes announced, {{end - position}} bytes left'"
        source.add(depth, f"if {size} * {least} > end - position: raise ValueError({reason})", leaf)
        if isinstance(element, Fixed) and element is not Uuid:
            source.add(depth, f"structures_left -= {size} // {1 if self.is_request else NUMBERS_PER_STRUCTURE}", leaf)
            source.add(depth, f"if structures_left < 0: raise ValueError({_TOO_MANY!r})", leaf)
            source.add(depth, f"{target} = list(unpack_from(f'>{{{size}}}{element.code}', data, position))", leaf)
            source.add(depth, f"position += {size} * {element.width}", leaf)
            return
        source.add(depth, f"structures_left -= {size}", leaf)
        source.add(depth, f"if structures_left < 0: raise ValueError({_TOO_MANY!r})", leaf)
        self.elements(depth, leaf, target, element, size)

    def elements(self, depth: int, leaf: Leaf, target: str, element: Fixed | Variable | type[Structure], size: str) -> None:
        """Loop over elements that are read one by one."""
        source = self.source
        items, index = source.fresh("items"), source.fresh("index")
        source.add(depth, f"{target} = {items} = []", leaf)
        source.add(depth, f"for {index} in range({size}):", leaf)
        item, path = source.fresh("item"), f"{leaf.path}[{{{index}}}]"
        here = Leaf(path, item)
        if isinstance(element, type):
            self.structure(depth + 1, element, item, path)
        elif isinstance(element, Variable):
            self.variable(depth + 1, here, item, element, is_nullable=False)
        else:
            source.add(depth + 1, f"{item} = UUID(bytes=unpack_from('16s', data, position)[0])", here)
            source.add(depth + 1, "position += 16", here)
        source.add(depth + 1, f"{items}.append({item})", here)

    # -- tagged fields ------------------------------------------------------------------------------------------------------------

    def tagged_fields(self, depth: int, tagged: list[Leaf], here: Leaf) -> None:
        """Read the tagged section; unknown tags are skipped, known ones must have exactly their announced size."""
        source = self.source
        count, tag, size, stop = (source.fresh(prefix) for prefix in ("count", "tag", "size", "stop"))
        source.add(depth, f"{count} = data[position]", here)
        source.add(depth, f"if not {count}: position += 1", here)
        if not tagged:
            source.add(depth, "else: position, structures_left = skip_tagged(data, position, end, structures_left)", here)
            return
        source.add(depth, "else:", here)
        self.uvarint(depth + 1, count, here)
        reason = f"f'{{{count}}} tagged fields announced, {{end - position}} bytes left'"
        source.add(depth + 1, f"if {count} * {_TAG_BYTES_MIN} > end - position: raise ValueError({reason})", here)
        source.add(depth + 1, f"structures_left -= {count}", here)
        source.add(depth + 1, f"if structures_left < 0: raise ValueError({_TOO_MANY!r})", here)
        source.add(depth + 1, f"for _ in range({count}):", here)
        self.uvarint(depth + 2, tag, here)
        self.uvarint(depth + 2, size, here)
        source.add(depth + 2, f"{stop} = position + {size}", here)
        reason = f"f'tag {{{tag}}} of {{{size}}} bytes announced, {{end - position}} left'"
        source.add(depth + 2, f"if {stop} > end: raise ValueError({reason})", here)
        for number, leaf in enumerate(tagged):
            source.add(depth + 2, f"{'el' if number else ''}if {tag} == {leaf.field.tag}:", leaf)
            self.tagged_value(depth + 3, leaf)
            reason = f"f'tag {{{tag}}} announced {{{size}}} bytes, its value ends at byte {{position}} instead of {{{stop}}}'"
            source.add(depth + 3, f"if position != {stop}: raise ValueError({reason})", leaf)
        source.add(depth + 2, f"position = {stop}", here)

    def tagged_value(self, depth: int, leaf: Leaf) -> None:
        field = leaf.field
        if isinstance(field.kind, Struct):
            self.nested(depth, leaf, f"{leaf.owner}.{field.name}", field.kind, is_nullable=False)
        else:
            self.value(depth, leaf)


_LENGTHS: Final = {prefix: Layout(">" + prefix).unpack_from for prefix in "hi"}
