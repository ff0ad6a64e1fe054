"""No secret in what a user, a log or MLflow gets to see."""

import pytest

from rampline.credentials import mask, without_user
from rampline.errors import RamplineError
from rampline.record.home import Home
from rampline.tracking.pages import how_to_open_mlflow
from rampline.tracking.store import TrackingError, open_tracking, param_text

PASSWORD = "hunter2hunter2"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://me:pw@host/path", "https://***@host/path"),
        ("https://token@host", "https://***@host"),
        ("postgresql+psycopg2://u:p@ss@db:5432/x?sslmode=on", "postgresql+psycopg2://***@db:5432/x?sslmode=on"),
        ("mysql://db/x?user=u&password=pw&ssl=1", "mysql://db/x?user=u&password=***&ssl=1"),
        ("see https://a:b@c and http://d:e@f", "see https://***@c and http://***@f"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
        ("write to me@example.org", "write to me@example.org"),
    ],
)
def test_the_user_of_a_uri_and_passwords_of_queries_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize("name", ["PREFECT_API_KEY", "RAMPLINE_NOTIFY_URL", "MLFLOW_TRACKING_PASSWORD"])
def test_what_secret_variables_hold_is_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, PASSWORD)
    assert mask(f"401 for header Bearer {PASSWORD}") == "401 for header Bearer ***"


def test_params_have_no_credentials() -> None:
    assert param_text(f"csv:https://me:{PASSWORD}@host/x.csv") == "csv:https://***@host/x.csv"


def test_a_server_that_is_away_is_named_without_its_password(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{PASSWORD}@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match=r"MLflow at http://\*\*\*@127\.0\.0\.1:9 cannot be used: ") as caught:
        open_tracking(Home(root=tmp_path))
    assert isinstance(caught.value, RamplineError)
    assert PASSWORD not in str(caught.value) + "".join(capfd.readouterr())
    assert how_to_open_mlflow(Home(root=tmp_path)) == "http://127.0.0.1:9"
    assert without_user("http://127.0.0.1:9") == "http://127.0.0.1:9"
