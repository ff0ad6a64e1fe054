"""Keys of artifacts."""

import re


def artifact_key(*parts: str) -> str:
    """The parts as Prefect allows a key: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
