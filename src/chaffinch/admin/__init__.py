"""Administration of any Kafka cluster: topics, configurations, groups and offsets, transactions. Results are typed.

Names and meanings follow Kafka's Admin interface and command line tools. Names are imported on first use, like those of `chaffinch`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from chaffinch.admin.configs import ConfigEntry
    from chaffinch.admin.group_offsets import CommittedOffset
    from chaffinch.admin.groups import GroupDescription, GroupListing, GroupOffset, Member, Reset, UnknownGroup
    from chaffinch.admin.option_types import AdminOptions
    from chaffinch.admin.topics import PartitionDetails, Topic, TopicDescription, UnknownTopic
    from chaffinch.admin.transactions import PartitionProducer, TransactionDescription, TransactionListing

_MODULES: Final = {
    "AdminOptions": "option_types",
    "CommittedOffset": "group_offsets",
    "ConfigEntry": "configs",
    "GroupDescription": "groups",
    "GroupListing": "groups",
    "GroupOffset": "groups",
    "Member": "groups",
    "PartitionDetails": "topics",
    "PartitionProducer": "transactions",
    "Reset": "groups",
    "Topic": "topics",
    "TopicDescription": "topics",
    "TransactionDescription": "transactions",
    "TransactionListing": "transactions",
    "UnknownGroup": "groups",
    "UnknownTopic": "topics",
}

__all__ = [
    "AdminOptions",
    "CommittedOffset",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "GroupOffset",
    "Member",
    "PartitionDetails",
    "PartitionProducer",
    "Reset",
    "Topic",
    "TopicDescription",
    "TransactionDescription",
    "TransactionListing",
    "UnknownGroup",
    "UnknownTopic",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
