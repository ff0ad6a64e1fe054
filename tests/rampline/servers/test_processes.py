"""What `rampline up` starts."""

import os

import yaml

from rampline.record.home import Home
from rampline.servers.processes import start


def test_neither_a_process_nor_what_it_starts_looks_for_modules_where_it_runs(tmp_path):
    (tmp_path / "yaml.py").write_text("")
    say = "import yaml; print(yaml.__file__, flush=True)"
    code = f"{say}; import subprocess, sys; subprocess.run([sys.executable, '-c', {say!r}])"
    log = tmp_path / "log"
    places = {"home": Home(root=tmp_path), "folder": tmp_path, "log": log}
    assert start(["-c", code], part="worker", environment=os.environ, **places).wait(60) == 0
    assert log.read_text().splitlines() == [yaml.__file__] * 2
