"""Administration of any Kafka cluster: `Admin`, and the types of its results.

    from chaffinch.admin import Admin

    with Admin(bootstrap_servers="localhost:9092") as admin:
        admin.create_topic("orders", partitions=3)

Names and meanings follow Kafka's Admin interface and command line tools. Names are imported on first use, like those of `chaffinch`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from chaffinch.admin.admin import Admin
    from chaffinch.admin.configs import ConfigEntry
    from chaffinch.admin.group_offsets import CommittedOffset
    from chaffinch.admin.groups import GroupDescription, GroupListing, GroupOffset, Member, Reset, UnknownGroup
    from chaffinch.admin.nodes import Cluster, Node
    from chaffinch.admin.option_types import AdminOptions
    from chaffinch.admin.topics import PartitionDetails, Topic, TopicDescription, UnknownTopic
    from chaffinch.admin.transactions import PartitionProducer, TransactionDescription, TransactionListing
    from chaffinch.admin.users import ScramCredential, User

_MODULES: Final = {
    "Admin": "admin",
    "AdminOptions": "option_types",
    "Cluster": "nodes",
    "CommittedOffset": "group_offsets",
    "ConfigEntry": "configs",
    "GroupDescription": "groups",
    "GroupListing": "groups",
    "GroupOffset": "groups",
    "Member": "groups",
    "Node": "nodes",
    "PartitionDetails": "topics",
    "PartitionProducer": "transactions",
    "Reset": "groups",
    "ScramCredential": "users",
    "Topic": "topics",
    "TopicDescription": "topics",
    "TransactionDescription": "transactions",
    "TransactionListing": "transactions",
    "UnknownGroup": "groups",
    "UnknownTopic": "topics",
    "User": "users",
}

__all__ = [
    "Admin",
    "AdminOptions",
    "Cluster",
    "CommittedOffset",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "GroupOffset",
    "Member",
    "Node",
    "PartitionDetails",
    "PartitionProducer",
    "Reset",
    "ScramCredential",
    "Topic",
    "TopicDescription",
    "TransactionDescription",
    "TransactionListing",
    "UnknownGroup",
    "UnknownTopic",
    "User",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        names = import_module("chaffinch.foreign_names")
        raise names.module_error(name, __name__, names.ADMIN_MODULE_HINTS)
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
