"""YAML that a person wrote, read so that no file can fill the memory or hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from califkit import CalifkitError
from califkit.runs.text import one_line

MAX_BYTES = 1 << 18
MAX_NODES = 100_000
MAX_DEPTH = 50


class YamlError(CalifkitError, ValueError):
    """YAML that cannot be read; one line that says why."""


class _Loader(yaml.SafeLoader):
    """``72:00:00`` is text, not the number 259200 as in YAML 1.1, whose base 60 nobody means; a key
    twice is an error, not the second value."""

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        tag = super().resolve(kind, value, implicit)
        is_number = tag.endswith((":int", ":float"))
        return self.DEFAULT_SCALAR_TAG if is_number and ":" in value else tag

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, _ in node.value:
            if keys.count((key.tag, key.value)) > 1 and key.tag != "tag:yaml.org,2002:merge":
                mark = f"line {key.start_mark.line + 1}"
                raise yaml.constructor.ConstructorError(None, None, f"{mark}: {key.value} twice")
        return super().construct_mapping(node, deep)


def read_yaml(source: Path | str) -> Any:
    """The content of a YAML file, or of a text.

    `YamlError` refuses also what is longer than `MAX_BYTES`, nested deeper than `MAX_DEPTH`, or has
    aliases that stand for more than `MAX_NODES` values (lists of lists of them grow exponentially).
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    else:
        text = source.encode("utf-8", "surrogateescape")
    if len(text) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES} bytes")
    try:
        value = yaml.load(text.decode("utf-8"), _Loader)  # noqa: S506 (a safe one)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: no UTF-8, no such date
        raise YamlError(one_line(error)) from error
    except RecursionError as error:
        raise YamlError("nested too deeply") from error
    check_size(value)
    return value


def check_size(value: Any) -> None:
    """`YamlError` for a tree of more than `MAX_NODES` values or deeper than `MAX_DEPTH`."""
    waiting, n, deepest = [(value, 0)], 0, 0
    while waiting:
        n += 1
        if n > MAX_NODES:
            raise YamlError(f"its aliases stand for more than {MAX_NODES} values")
        item, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list | tuple | set):
            waiting += [(part, depth + 1) for part in item]
    if deepest > MAX_DEPTH:
        raise YamlError("nested too deeply")
