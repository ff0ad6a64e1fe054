import os
import subprocess
import sys
from pathlib import Path


def test_temporary_files_are_in_the_home_where_no_other_user_has_been_before(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import tempfile; print(tempfile.gettempdir())")
    command = [sys.executable, "-m", "rampline.servers.child", str(os.getpid()), "told"]
    environment = {**os.environ, "RAMPLINE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(tmp_path / "home/servers/tmp")
