"""What a launcher has on another machine: what it puts there, and what it leaves."""

from pathlib import Path

from rampline.jobs.mirror import pack
from rampline.jobs.role_host import RoleHost


class WithoutForks(RoleHost):
    """It starts no roles."""

    def __init__(self) -> None:
        self._roles, self._changes, self._copies = {}, None, {}


def test_copies_go_with_the_placement_and_datasets_stay(tmp_path: Path) -> None:
    run, copies = tmp_path / "run", tmp_path / "there" / "runs"
    (run / "checkpoints").mkdir(parents=True)
    content, hosts = pack(run), (WithoutForks(), WithoutForks())
    hosts[0].stage(str(tmp_path / "there" / "data"), content)
    for name in ("whole", "whole/parity", "replaced"):
        hosts[0].stage_run(str(copies / name), content)
    hosts[1].stage_run(str(copies / "replaced"), content)
    hosts[0].end()
    assert [path.name for path in copies.iterdir()] == ["replaced"]
    hosts[1].end()
    hosts[1].end()
    assert [*copies.iterdir()] == []
    assert (tmp_path / "there" / "data" / "checkpoints").is_dir()
    assert (run / "checkpoints").is_dir()
