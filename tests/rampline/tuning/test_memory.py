"""Memory of the trials."""

from pathlib import Path

import pytest

from rampline.data.ingest import choose_cache
from rampline.jobs import memory
from rampline.jobs.memory import available_bytes, lacking_bytes, peak_bytes

GIB = 2**30


def test_twice_the_batch_needs_twice_what_was_added_last() -> None:
    peaks = [1 * GIB, 2 * GIB, 4 * GIB]
    assert lacking_bytes(peaks, 5 * GIB) == 0
    assert lacking_bytes(peaks, 2 * GIB) == 4 * GIB - int(0.9 * 2 * GIB)
    assert lacking_bytes([GIB], 0) == 0  # nothing is known yet


def test_memory_is_that_of_this_machine() -> None:
    assert 10 * 2**20 < peak_bytes() < 2**40
    assert 0 < available_bytes() < 2**50


@pytest.mark.parametrize("place", ["", "above"])
def test_a_container_or_a_job_has_less_memory_than_its_machine(tmp_path: Path, monkeypatch, place: str) -> None:
    """What the kernel keeps of files it can give back."""
    own = tmp_path / "job/step"
    own.mkdir(parents=True)
    limited = own.parent if place else own
    monkeypatch.setattr(memory, "own_cgroups", lambda: [own, own.parent, tmp_path])
    for name, text in (("max", GIB), ("current", GIB // 2), ("stat", f"anon 1\ninactive_file {GIB // 4}\n")):
        (limited / f"memory.{name}").write_text(f"{text}")
    assert available_bytes() == 3 * GIB // 4
    cache, reason = choose_cache(GIB // 4, (1, 1, 1), tmp_path)
    assert cache != "memory"
    assert "0.8 GiB of memory" in reason
