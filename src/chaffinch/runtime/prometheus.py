"""Prometheus text format, version 0.0.4, for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
NO_LABELS: Labels = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its series. Names of counters end with `_total`."""

    name: str
    help: str
    series: Iterable[tuple[Labels, float]]

    @property
    def text(self) -> str:
        kind = "counter" if self.name.endswith("_total") else "gauge"
        lines = [f"# HELP {self.name} {_escaped(self.help, quotes=False)}", f"# TYPE {self.name} {kind}"]
        lines += [f"{self.name}{_braced(labels)} {value}" for labels, value in self.series]
        return "\n".join(lines) + "\n"


def single(name: str, help_text: str, value: float) -> Family:
    """A metric with one series, without labels."""
    return Family(name, help_text, [(NO_LABELS, value)])


def _braced(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
