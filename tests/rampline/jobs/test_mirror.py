"""A copied run directory: what roles change in it comes back once, checkpoints complete."""

from pathlib import Path

from rampline.jobs.mirror import Changes, apply, pack_run, replace_run
from rampline.jobs.tf_config import Task

CLUSTER = {"worker": ("127.0.0.1:1", "127.0.0.1:2")}
CHIEF, OTHER = (Task(cluster=CLUSTER, role="worker", index=index) for index in range(2))


def test_two_roles_on_one_machine_tell_of_each_change_once(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    (home / "events.jsonl").write_text('{"event": "old"}\n')
    replace_run(pack_run(home), copy)
    looks = [Changes(copy, task) for task in (CHIEF, OTHER)]
    (copy / "logs").mkdir()
    with open(copy / "events.jsonl", "a") as events:
        events.write('{"event": "epoch"}\n{"half')
    (copy / "logs" / "worker-1.log").write_text("a line\n")
    (copy / "checkpoints" / "step-00000004").mkdir(parents=True)
    (copy / "checkpoints" / "step-00000004" / "progress.json").write_text("{}")
    changes = [change for look in looks for change in look.read()]
    for change in changes:
        apply(home, change)
    assert changes[0].kind == "checkpoint"
    assert (home / "events.jsonl").read_text() == '{"event": "old"}\n{"event": "epoch"}\n'
    assert (home / "logs" / "worker-1.log").read_text() == "a line\n"
    assert (home / "checkpoints" / "step-00000004" / "progress.json").read_text() == "{}"
    assert not [change for look in looks for change in look.read()]
