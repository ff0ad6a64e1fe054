"""The keys of a study file for editors, as a JSON schema, and for people, as the tables of `docs/studies.md`.

`python -m rampline.study.schema docs/studies.md` writes the tables.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rampline.config import RunConfig
from rampline.config.setting import describe, schema_of
from rampline.files import write_text
from rampline.study.definition import GridKeys, RunKeys, StudyKeys

# `<!-- keys of data -->`, the table, `<!-- end -->`.
MARKED = re.compile(r"(<!-- keys of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


# What is checked run by run: keys that hold settings, and keys whose entries do.
HOLD, ENTRIES_HOLD = {"base": RunConfig, "set": RunConfig}, {"runs": RunKeys, "grid": GridKeys}


def study_schema() -> dict[str, Any]:
    """The JSON schema of a study file: every key with its description and what it may be."""
    definitions: dict[str, Any] = {}
    for kind in (StudyKeys, RunKeys, GridKeys, RunConfig):
        schema = schema_of(kind)
        definitions |= schema.pop("$defs", {}) | {kind.__name__: schema}
    for name in (StudyKeys.__name__, RunKeys.__name__, GridKeys.__name__):
        for key, field in definitions[name]["properties"].items():
            if key in HOLD:
                field |= _reference(HOLD[key])
            elif key in ENTRIES_HOLD:
                field["additionalProperties"] = {"anyOf": [_reference(ENTRIES_HOLD[key]), {"type": "null"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | _reference(StudyKeys) | {"$defs": definitions}


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": f"#/$defs/{kind.__name__}"}


def write_tables(document: str) -> str:
    """`document` with each marked table as the keys are today; marks name their classes."""
    definitions = study_schema()["$defs"]
    return MARKED.sub(lambda mark: mark[1] + _write_table(definitions, mark[2]) + mark[3], document)


def _write_table(definitions: Mapping[str, Any], name: str) -> str:
    section = _section(definitions[name])
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key, field in definitions[name]["properties"].items():
        inner = definitions.get(field.get("$ref", "").rpartition("/")[2], {})
        if not _section(inner):  # a section has a table of its own
            cells = (_code(section + key), _default(field), describe(field, _code), _meaning(field))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _section(settings: Mapping[str, Any]) -> str:
    """What stands before the keys of a section; empty for others, whose title is the name of their class."""
    title = settings.get("title", "")
    return f"{title}." if title.islower() else ""


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default", "")
    if default in ("", {}):
        return "-"
    return _code(default if isinstance(default, str) else json.dumps(default))


def _meaning(field: Mapping[str, Any]) -> str:
    meanings = "; ".join(f"{_code(value)}: {meaning}" for value, meaning in _meanings(field).items())
    return ". ".join(part for part in (field["description"], meanings) if part)


def _meanings(field: Mapping[str, Any]) -> dict[Any, str]:
    """What each of the allowed values means, where fields say it for each."""
    parts = [part for part in (field, *field.get("anyOf", [])) if "meanings" in part]
    return {value: part["meanings"][value] for part in parts for value in part.get("enum") or part["examples"]}


def _code(value: Any) -> str:
    # What has blanks is words about a value.
    return str(value) if " " in str(value) and str(value)[0].isalpha() else f"`{value}`"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    write_text(document, write_tables(document.read_text(encoding="utf-8")))
