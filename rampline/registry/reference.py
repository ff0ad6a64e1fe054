"""Names in MLflow's model registry, and what they lead to: `models:/rampline-digits@champion`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.errors import InputError
from rampline.tracking.store import TrackingError, first_line

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous-champion"
PREFIX = "rampline-"
# MLflow's notation: an alias behind @, or a version behind /. The scheme may be left out where there is an alias.
_NOTATION = re.compile(r"(?:models:/)?(?P<name>[^/@]+)@(?P<alias>[^/@]+)|models:/(?P<named>[^/@]+)/(?P<version>\d+)")


@dataclass(frozen=True, kw_only=True)
class ModelReference:
    """A version of a registered model, by alias or by number; exactly one of the two is set."""

    name: str
    alias: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        if bool(self.alias) == bool(self.version):
            raise ValueError(f"{self}: one of alias and version is needed")

    def __str__(self) -> str:
        return f"{self.name}@{self.alias}" if self.alias else f"{self.name} version {self.version}"


def registered_name(study: str) -> str:
    """The registered model of a study, such as `rampline-digits`."""
    return f"{PREFIX}{study}"


def parse_reference(text: str) -> ModelReference | None:
    """What `models:/NAME@ALIAS`, `NAME@ALIAS` or `models:/NAME/VERSION` names; `None` for any other text."""
    match = _NOTATION.fullmatch(text)
    if match is None:
        return None
    if match["alias"]:
        return ModelReference(name=match["name"], alias=match["alias"])
    return ModelReference(name=match["named"], version=match["version"])


def find_version(client: MlflowClient, reference: ModelReference) -> ModelVersion | None:
    """The version; `None` where the registry has no such model, alias or version.

    Raises:
        TrackingError: when the registry cannot be asked.
    """
    try:
        if reference.alias:
            return client.get_model_version_by_alias(reference.name, reference.alias)
        return client.get_model_version(reference.name, reference.version)
    except MlflowException as error:
        # An alias that a model does not have is a wrong parameter to MLflow, a model that is not there is missing.
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise TrackingError(f"MLflow's model registry cannot be asked for {reference}: {first_line(error)}") from error


def get_version(client: MlflowClient, reference: ModelReference) -> ModelVersion:
    """The version that must be there.

    Raises:
        InputError: when there is none.
        TrackingError: when the registry cannot be asked.
    """
    version = find_version(client, reference)
    if version is None:
        raise InputError(f"no model {reference} in MLflow: `rampline promote RUN_ID` registers one")
    return version
