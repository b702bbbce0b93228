"""Settings: one table per part, parsed the same way wherever options come from."""

import pickle
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.errors import ConfigException, Group
from chaffinch.settings import ERRORS_SHOWN_MAX, Option, OptionTable, Settings
from tools.markdown_tables import options_table

TABLE = OptionTable(
    [
        Option("bootstrap.servers", "list", None, "First addresses.", required=True),
        Option("linger.ms", "int", 5, "How long a batch waits.", minimum=0, maximum=10_000),
        Option("retries", "int", 0, "How often it is sent again."),
        Option("acks", "string", "all", "Who must have it.", choices=("all", "-1", "0", "1")),
        Option("level", "int", -1, "How hard.", minimum=-1, maximum=9, gap=0),
        Option("compression.ratio", "float", 0.5, "A share.", minimum=0.0, maximum=1.0),
        Option("enable.idempotence", "bool", True, "Write once."),
        Option("cleanup.policy", "list", ("delete",), "What is dropped.", choices=("delete", "compact")),
        Option("transactional.id", "string", None, "Who writes."),
        Option("ssl.keystore.password", "string", None, "A secret.", choices=("right",)),
        Option("partitioner", "any", None, "A callable."),
    ],
    without_effect={"client.dns.lookup"},
)
SERVERS = {"bootstrap.servers": "a:1"}


def parse(mapping: dict[Any, Any] | None = None, **keywords: Any) -> Settings:
    return TABLE.parse({**SERVERS, **(mapping or {})}, **keywords)


class TestNames:
    def test_dots_and_underscores_are_the_same_option(self) -> None:
        assert (
            TABLE.parse({"bootstrap.servers": "a:1"}) == TABLE.parse(bootstrap_servers="a:1") == TABLE.parse({"bootstrap_servers": "a:1"})
        )

    def test_settings_have_every_option_under_its_dotted_name(self) -> None:
        assert list(parse()) == [option.name for option in TABLE.options]
        assert parse()["linger.ms"] == 5
        with pytest.raises(KeyError):
            parse()["linger_ms"]

    def test_given_options_are_distinguished_from_defaults(self) -> None:
        assert parse(linger_ms=5).given == {"bootstrap.servers", "linger.ms"}

    @pytest.mark.parametrize("options", ["a:1", 7, [("sasl.password", "S3cret")], {"bootstrap.servers"}], ids=str)
    def test_options_that_are_no_mapping_are_rejected_without_their_value(self, options: Any) -> None:
        text = f"options must be a mapping of names to values, not a value of type {type(options).__name__}"
        with pytest.raises(ConfigException, match=f"{text}$"):
            TABLE.parse(options)

    @pytest.mark.parametrize("name", [b"linger.ms", 7, None])
    def test_names_are_strings(self, name: bytes | int | None) -> None:
        with pytest.raises(ConfigException, match=r"an option has the name .*, which is not a string"):
            parse({name: "1"})

    def test_none_means_not_given(self) -> None:
        settings = parse({"linger.ms": None}, acks=None)
        assert settings["linger.ms"] == 5
        assert settings["acks"] == "all"
        assert settings.given == {"bootstrap.servers"}

    @pytest.mark.parametrize(
        ("wrong", "nearest"),
        [
            ("liger.ms", "linger.ms"),
            ("linger", "linger.ms"),
            ("ack", "acks"),
            ("bootstrap.server", "bootstrap.servers"),
            ("enable_idempotent", "enable_idempotence"),
            ("linger__ms", "linger_ms"),
            ("client.dns.lookups", "client.dns.lookup"),
        ],
    )
    def test_an_unknown_name_gets_the_nearest_known_one(self, wrong: str, nearest: str) -> None:
        with pytest.raises(ConfigException) as caught:
            parse({wrong: 1})
        assert str(caught.value) == f"unknown option {wrong!r}: the nearest known one is {nearest!r}"
        assert caught.value.group is Group.INVALID_CONFIGURATION

    def test_all_errors_are_in_one_message(self) -> None:
        """All errors are reported together, because with Spark each attempt takes ten seconds."""
        with pytest.raises(ConfigException) as caught:
            parse({"liger.ms": 1, "acks": "2", "sasl.mechanism": "PLAIN"})
        assert str(caught.value) == (
            "unknown option 'liger.ms': the nearest known one is 'linger.ms'; option acks cannot be '2': it must be one of all, -1, 0, 1; "
            "unknown option 'sasl.mechanism': no known option is similar"
        )

    def test_of_many_wrong_options_the_first_are_named(self) -> None:
        with pytest.raises(ConfigException) as caught:
            parse({f"key-{number}": 1 for number in range(ERRORS_SHOWN_MAX + 2)})
        assert str(caught.value).count("unknown option") == ERRORS_SHOWN_MAX
        assert str(caught.value).endswith("; and 2 more")

    def test_dissimilar_name_has_no_suggestion(self) -> None:
        with pytest.raises(ConfigException, match=r"^unknown option 'sasl.mechanism': no known option is similar$"):
            parse({"sasl.mechanism": "PLAIN"})

    def test_the_same_option_twice_is_refused_even_with_equal_values(self) -> None:
        with pytest.raises(ConfigException, match=r"option linger.ms is given twice, as 'linger.ms' and as 'linger_ms'"):
            TABLE.parse({"linger.ms": 1}, linger_ms=1)

    def test_a_name_without_effect_is_accepted_and_collected(self) -> None:
        settings = parse(client_dns_lookup="use_all_dns_ips")
        assert dict(settings.ignored) == {"client.dns.lookup": "use_all_dns_ips"}
        assert "client.dns.lookup" not in settings

    def test_option_of_another_component_is_validated_without_effect(self) -> None:
        table = OptionTable((), without_effect=("client.dns.lookup", Option("linger.ms", "int", 5, "How long.", minimum=0)))
        assert table.without_effect == {"client.dns.lookup", "linger.ms"}
        assert dict(table.parse({"linger_ms": "7"}).ignored) == {"linger.ms": 7}
        with pytest.raises(ConfigException, match=r"^option linger\.ms cannot be 'x': it must be a whole number$"):
            table.parse({"linger.ms": "x"})

    def test_long_value_is_shortened(self) -> None:
        with pytest.raises(ConfigException) as caught:
            parse({"linger.ms": "9" * 70_000})
        assert str(caught.value) == f"option linger.ms cannot be '{'9' * 199}...: it must be a whole number"

    def test_missing_required_option_is_described(self) -> None:
        with pytest.raises(ConfigException, match=r"option bootstrap.servers is missing: First addresses\."):
            TABLE.parse({})

    def test_empty_list_is_missing_for_a_required_option(self) -> None:
        with pytest.raises(ConfigException, match=r"bootstrap\.servers is missing"):
            TABLE.parse({"bootstrap.servers": ""})


class TestValues:
    @pytest.mark.parametrize(
        ("name", "given", "parsed"),
        [
            ("linger.ms", "100", 100),
            ("linger.ms", " 7 ", 7),
            ("linger.ms", 0, 0),
            ("linger.ms", 10_000, 10_000),
            ("retries", 2**63 - 1, 2**63 - 1),
            ("retries", np.int64(7), 7),
            ("acks", 1, "1"),
            ("acks", np.int8(1), "1"),
            ("transactional.id", PurePosixPath("a/b"), "a/b"),
            ("acks", "all", "all"),
            ("compression.ratio", "0.25", 0.25),
            ("compression.ratio", 1, 1.0),
            ("compression.ratio", np.float32(0.25), 0.25),
            ("enable.idempotence", "true", True),
            ("enable.idempotence", "False", False),
            ("enable.idempotence", False, False),
            ("enable.idempotence", np.True_, True),
            ("enable.idempotence", np.bool_(False), False),
            ("bootstrap.servers", "a:1, b:2,", ("a:1", "b:2")),
            ("bootstrap.servers", ["a:1", "b:2"], ("a:1", "b:2")),
            ("cleanup.policy", "compact,delete", ("compact", "delete")),
            ("transactional.id", "", ""),
            ("partitioner", print, print),
        ],
    )
    def test_parsed(self, name: str, given: Any, parsed: Any) -> None:
        value = TABLE.parse({**SERVERS, name: given})[name]
        assert value == parsed
        assert type(value) is type(parsed)

    @pytest.mark.parametrize(
        ("name", "given", "text"),
        [
            ("linger.ms", -1, "option linger.ms cannot be -1: it must be at least 0 and at most 10000"),
            ("linger.ms", 10_001, "option linger.ms cannot be 10001: it must be at least 0 and at most 10000"),
            ("linger.ms", "soon", "option linger.ms cannot be 'soon': it must be a whole number"),
            ("linger.ms", 1.5, "option linger.ms cannot be 1.5: it must be a whole number"),
            ("linger.ms", np.float64(1), "option linger.ms cannot be np.float64(1.0): it must be a whole number"),
            ("linger.ms", np.True_, "option linger.ms cannot be np.True_: it must be a whole number"),
            ("acks", np.True_, "option acks cannot be np.True_: it must be a string"),
            ("transactional.id", b"a", "option transactional.id cannot be b'a': it must be a string"),
            ("linger.ms", True, "option linger.ms cannot be True: it must be a whole number"),
            ("linger.ms", "1_0", "option linger.ms cannot be '1_0': it must be a whole number"),
            ("linger.ms", "\u0663", "option linger.ms cannot be '\u0663': it must be a whole number"),
            ("retries", 2**63, f"option retries cannot be {2**63}: it must be a whole number of at most 64 bits"),
            ("retries", -(2**63) - 1, f"option retries cannot be {-(2**63) - 1}: it must be a whole number of at most 64 bits"),
            ("acks", "some", "option acks cannot be 'some': it must be one of all, -1, 0, 1"),
            ("acks", 2, "option acks cannot be 2: it must be one of all, -1, 0, 1"),
            ("level", "0", "option level cannot be '0': it must be at least -1 and at most 9 and not 0"),
            ("compression.ratio", "nan", "option compression.ratio cannot be 'nan': it must be a number"),
            ("compression.ratio", 1.5, "option compression.ratio cannot be 1.5: it must be at least 0.0 and at most 1.0"),
            ("enable.idempotence", "yes", "option enable.idempotence cannot be 'yes': it must be true or false"),
            ("enable.idempotence", 1, "option enable.idempotence cannot be 1: it must be true or false"),
            ("cleanup.policy", "compact,shred", "option cleanup.policy cannot be 'compact,shred': it must be one of delete, compact"),
            ("bootstrap.servers", [1], "option bootstrap.servers cannot be [1]: it must be a list of strings, or one string with commas"),
            (
                "transactional.id",
                "\ud800",
                f"option transactional.id cannot be {chr(0xD800)!r}: it must be a string, in characters that UTF-8 has",
            ),
            ("transactional.id", b"x", "option transactional.id cannot be b'x': it must be a string"),
        ],
    )
    def test_refused(self, name: str, given: Any, text: str) -> None:
        with pytest.raises(ConfigException) as caught:
            TABLE.parse({**SERVERS, name: given})
        assert str(caught.value) == text

    def test_a_secret_is_in_no_message(self) -> None:
        with pytest.raises(ConfigException) as caught:
            parse(ssl_keystore_password="hunter2")
        assert "hunter2" not in str(caught.value)
        assert "right" not in repr(parse(ssl_keystore_password="right"))

    @given(
        st.dictionaries(
            st.sampled_from([option.name for option in TABLE.options]) | st.text(max_size=20),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()),
        )
    )
    def test_any_mapping_parses_or_raises_config_exception(self, mapping: dict[str, Any]) -> None:
        try:
            settings = TABLE.parse(mapping)
        except ConfigException:
            return
        assert set(settings) == {option.name for option in TABLE.options}


class TestSettings:
    def test_immutable(self) -> None:
        settings = parse()
        with pytest.raises(TypeError):
            settings["linger.ms"] = 1  # type: ignore[index]
        with pytest.raises(TypeError):
            settings.ignored["x"] = 1  # type: ignore[index]

    def test_pickles(self) -> None:
        settings = parse(linger_ms=7, client_dns_lookup="x")
        copied = pickle.loads(pickle.dumps(settings))
        assert (copied, copied.given, dict(copied.ignored)) == (settings, settings.given, dict(settings.ignored))


class TestTables:
    def test_documentation(self) -> None:
        lines = options_table(TABLE.options).splitlines()
        assert lines[0] == "| option | type | default | allowed | meaning |"
        assert lines[2] == "| `bootstrap.servers` | list | (required) | | First addresses. |"
        assert lines[3] == "| `linger.ms` | int | `5` | at least 0 and at most 10000 | How long a batch waits. |"
        assert "| `level` | int | `-1` | at least -1 and at most 9 and not 0 | How hard. |" in lines
        assert "| `enable.idempotence` | bool | `true` | | Write once. |" in lines
        assert len(lines) == 2 + len(TABLE.options)

    @pytest.mark.parametrize("default", ["7", 11, -1, True])
    def test_default_that_its_parser_changes_is_an_error(self, default: int | str) -> None:
        with pytest.raises((AssertionError, ConfigException)):
            Option("x", "int", default, "", minimum=0, maximum=10)

    def test_duplicate_option_is_an_error(self) -> None:
        option = Option("a.b", "int", 1, "")
        with pytest.raises(AssertionError, match="twice"):
            OptionTable([option, Option("a_b", "int", 1, "")])
        with pytest.raises(AssertionError, match="has an effect and has none"):
            OptionTable([option], {"a.b"})
