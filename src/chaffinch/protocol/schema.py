"""Message schema: one class describes a message in all its versions.

A message is a class whose annotated attributes are wire fields:

    class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible_since=3):
        transactional_id: str = wire(String)
        committed: bool = wire(Bool)

Messages are mutable, have slots, are compared by value and constructed with keywords only. Every field has a default (the type's own,
unless `default` is given), as in Kafka's generated classes. `dataclasses` is not used because it compiles three methods per class at
import: a hundred messages would cost a broker 50 ms at start. Here `__init__` is compiled at the first construction and the codec at the
first use of a version.

Field names are Kafka's (its JSON message descriptions) in snake case.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Self, dataclass_transform

from chaffinch.protocol.decoder import compile_decoder
from chaffinch.protocol.encoder import compile_encoder
from chaffinch.protocol.primitives import Array, Buffer, Field, Kind, Struct, Structure
from chaffinch.protocol.violations import MalformedMessage, UnencodableMessage

VERSION_MAX: Final = 0x7FFF


class _Unset:
    """Marks "no value given" if None is a value."""

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = _Unset()


def wire(
    kind: Kind | type[Message],
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable_since: int | None = None,
    tag: int | None = None,
    tagged_since: int | None = None,
    default: Any = UNSET,
    essential: bool = False,
) -> Any:
    """Describe a field, which is named after its attribute. The result is Any so that only the annotation decides its static type."""
    described = Struct(kind) if isinstance(kind, type) else kind
    if default is UNSET:
        default = [] if isinstance(described, Array) else None if isinstance(described, Struct) else described.default
    first_tagged = since if tagged_since is None else tagged_since
    return Field("", described, since, until, nullable_since, tag, first_tagged, default, essential)


@dataclass_transform(kw_only_default=True)
class MessageType(type):
    """Collects the fields of a message class and gives it slots."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **description: Any,
    ) -> MessageType:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key, field in fields.items():
            field.name = key
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        namespace["FIELDS"] = tuple(fields.values())
        namespace["_encoders"] = {}
        namespace["_decoders"] = {}
        return super().__new__(mcs, name, bases, namespace, **description)


class Message(Structure, metaclass=MessageType):
    """Base class of requests, responses and nested structures, which class attributes describe.

    `API_KEY` is -1 for nested structures; `VERSIONS` are those that can be encoded and decoded (first, last); from `FLEXIBLE_SINCE`
    on, lengths are compact and each structure ends with tagged fields (KIP-482).
    """

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, VERSION_MAX)
    FLEXIBLE_SINCE: ClassVar[int] = VERSION_MAX
    _encoders: ClassVar[dict[int, Any]]
    _decoders: ClassVar[dict[int, Any]]

    def __init_subclass__(
        cls, *, api_key: int = -1, versions: tuple[int, int] = (0, VERSION_MAX), flexible_since: int = VERSION_MAX
    ) -> None:
        cls.API_KEY = api_key
        cls.VERSIONS = versions
        cls.FLEXIBLE_SINCE = flexible_since

    def __init__(self, **values: Any) -> None:
        """Compile the class's constructor, which replaces this one."""
        cls = type(self)
        constructor = _compile_constructor(cls)
        cls.__init__ = constructor  # type: ignore[method-assign]
        constructor(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = ", ".join(f"{field.name}={_shown(getattr(self, field.name, UNSET))}" for field in self.FIELDS)
        return f"{type(self).__name__}({parts})"

    def replace(self, **changes: Any) -> Self:
        """A shallow copy with some fields replaced."""
        return type(self)(**{field.name: getattr(self, field.name) for field in self.FIELDS} | changes)

    def encode(self, version: int) -> list[Buffer]:
        """The body in one version, as buffers to be written one after the other; `records` are the caller's own buffers.

        Raises UnencodableMessage naming the field whose value does not fit.
        """
        return self.encode_after(bytearray(), version)

    def encode_after(self, head: bytearray, version: int) -> list[Buffer]:
        """Like `encode`, but appended to `head` (frame length and header), which is the first buffer of the result."""
        cls = type(self)
        encoder = cls._encoders.get(version)
        if encoder is None:
            encoder = cls._compile(version, "encoder")
        result: list[Buffer] = encoder(self, head)
        return result

    @classmethod
    def decode(cls, data: Buffer, version: int) -> Self:
        """Read a body. `records` are memoryviews into `data`; bytes after the body are ignored, as Kafka does.

        Raises MalformedMessage.
        """
        return cls.decode_from(memoryview(data), 0, version)[0]

    @classmethod
    def decode_from(cls, data: memoryview, position: int, version: int) -> tuple[Self, int]:
        """Read a body that begins at `position`: (message, position after it). `data` must end where the frame ends."""
        decoder = cls._decoders.get(version)
        if decoder is None:
            decoder = cls._compile(version, "decoder")
        result: tuple[Self, int] = decoder(data, position)
        return result

    @classmethod
    def _compile(cls, version: int, side: str) -> Any:
        first, last = cls.VERSIONS
        if not first <= version <= last:
            reason = f"versions {first} to {last} are described"
            if side == "decoder":
                raise MalformedMessage(cls.__name__, version, "version", 0, reason)
            raise UnencodableMessage(cls.__name__, version, "version", reason)
        if side == "decoder":
            function = cls._decoders[version] = compile_decoder(cls, version)
        else:
            function = cls._encoders[version] = compile_encoder(cls, version)
        return function


def _shown(value: Any) -> str:
    if isinstance(value, memoryview | bytearray | bytes) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(value)


def _compile_constructor(cls: type[Message]) -> Any:
    """`__init__` with one keyword per field; lists are fresh for each instance."""
    scope: dict[str, Any] = {"UNSET": UNSET}
    parameters, body = [], []
    for field in cls.FIELDS:
        scope[f"default_{field.name}"] = UNSET if isinstance(field.default, list) else field.default
        parameters.append(f"{field.name}=default_{field.name}")
        value = f"[] if {field.name} is UNSET else {field.name}" if isinstance(field.default, list) else field.name
        body.append(f"    self.{field.name} = {value}")
    star = ", *, " if parameters else ""
    source = f"def __init__(self{star}{', '.join(parameters)}):\n" + "\n".join(body or ["    pass"])
    exec(source, scope)
    return scope["__init__"]
