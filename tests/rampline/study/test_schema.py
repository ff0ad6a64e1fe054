"""The keys of study files as documents and editors have them."""

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from rampline.study import built_in_studies, load_study
from rampline.study.content import BUILT_IN
from rampline.study.schema import study_schema, write_tables

DOCUMENT = Path(__file__).parents[3] / "docs" / "studies.md"


def refused(content: str) -> list[str]:
    """The keys that the schema refuses in a study file, which JSON holds as an editor would."""
    values = json.loads(json.dumps(yaml.safe_load(content)))
    errors = Draft202012Validator(study_schema()).iter_errors(values)
    return [".".join(str(part) for part in error.absolute_path) for error in errors]


def test_the_document_has_the_keys_as_they_are():
    document = DOCUMENT.read_text(encoding="utf-8")
    assert write_tables(document) == document
    for name in study_schema()["$defs"]:
        assert f"<!-- keys of {name} -->\n| key |" in document


def test_the_document_names_the_studies_with_figures_of_others():
    document, said = DOCUMENT.read_text(encoding="utf-8"), " are experiments whose figures others have published"
    named = re.findall(r"`(\w+)`", document.partition(said)[0].rpartition("\n\n")[2])
    assert sorted(named) == [name for name in built_in_studies() if load_study(name).published_metrics]


@pytest.mark.parametrize("name", built_in_studies())
def test_built_in_studies_keep_to_the_schema(name):
    Draft202012Validator.check_schema(study_schema())
    assert refused((BUILT_IN / f"{name}.yaml").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "content, key",
    [
        ("runs: {a: {set: {epochs: 0}}}", "runs.a"),
        ("runs: {a: {set: {epoch: 1}}}", "runs.a"),
        ("base: {batch: {size: 6.4}}\nruns: {a:}", "base.batch.size"),
        ("base: {learning_rate: {schedule: linear}}\nruns: {a:}", "base.learning_rate.schedule"),
        ("recommend: {accuracy_tolerance: 5}\nruns: {a:}", "recommend.accuracy_tolerance"),
        ("base: {metrics: [top_1]}\nruns: {a:}", "base.metrics.0"),
        ("base: {data: {checksum: '1'}}\nruns: {a:}", "base.data.checksum"),
        ("title: x\nruns: {a:}", ""),
    ],
)
def test_what_a_study_refuses_the_schema_refuses(content, key):
    assert refused(content) == [key]


def test_what_a_study_takes_the_schema_takes():
    assert refused("base: {cluster: {replicas: auto}, data: {prefetch: 'off'}}\nruns: {a:}") == []


def test_every_key_has_a_description():
    for keys in study_schema()["$defs"].values():
        assert all(field["description"] for field in keys["properties"].values())
