"""The one registry of APIs: key, messages, and the versions the broker serves and the client uses."""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.produce import ProduceRequest, ProduceResponse
from chaffinch.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class Api:
    """One API. `served` and `used` are the versions of our broker and our client; empty where that side does not have it."""

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    served: range
    used: range

    @property
    def flexible_since(self) -> int:
        """First version with compact lengths, tagged fields, request header 2 and response header 1 (KIP-482)."""
        return self.request.FLEXIBLE_SINCE


def _row(request: type[Message], response: type[Message], served: tuple[int, int], used: tuple[int, int]) -> Api:
    """Ranges are given as (first, last)."""
    name = request.__name__.removesuffix("Request")
    return Api(request.API_KEY, name, request, response, range(served[0], served[1] + 1), range(used[0], used[1] + 1))


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        #    request              response              served    used
        _row(ProduceRequest, ProduceResponse, (3, 12), (3, 12)),
        _row(MetadataRequest, MetadataResponse, (0, 13), (4, 13)),
        _row(ApiVersionsRequest, ApiVersionsResponse, (0, 4), (0, 3)),
    )
}
"""Every API by its key."""

_BY_MESSAGE: dict[type[Message], Api] = {message: api for api in APIS.values() for message in (api.request, api.response)}


def api_of(message: Message | type[Message]) -> Api:
    """The API a request or response (or its class) belongs to; KeyError for nested structures."""
    return _BY_MESSAGE[message if isinstance(message, type) else type(message)]
