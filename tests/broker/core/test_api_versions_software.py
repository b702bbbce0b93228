"""What a client may call itself (KIP-511): other names are refused, from the version that has them."""

import pytest

from chaffinch.protocol.messages.api_versions import ApiVersionsRequest
from tests.broker.core_client import Cluster


@pytest.mark.parametrize(
    ("name", "version", "error_code"),
    [("librdkafka", "2.16.0", 0), ("a", "1", 0), ("a b", "1", 42), ("", "1", 42), ("-a", "1", 42), ("a", "1.", 42), ("a\n", "1", 42)],
)
def test_illegal_software_names_are_refused(name: str, version: str, error_code: int) -> None:
    requested = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    assert Cluster().client().ask(requested, 3).error_code == error_code


def test_versions_without_software_names_are_accepted() -> None:
    assert Cluster().client().ask(ApiVersionsRequest(), 2).error_code == 0
