"""A folder as what is in it."""

from pathlib import Path


def read_tree(folder: Path) -> dict[str, bytes]:
    """Content of each file below the folder, by its path from there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
