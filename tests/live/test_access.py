"""Who is refused: other sites, other hosts, a wrong token, every path, and everything but reading."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from findings.made_run import MadeRun
from learnscope.live.access import Access
from learnscope.live.server import application
from learnscope.record import Column, Table
from learnscope.report.page.packing import unpack
from learnscope.store.folders import replace_run

SECRET = "top-secret-outside-of-the-runs"


def made(folder: Path, steps: int = 40) -> None:
    run = MadeRun(layers=["0"], layer_types={"0": "Linear"})
    for step in range(1, steps + 1):
        run.write("Loss", step, [Table("model", ["model"], [Column("loss", [1 / step])])])
    replace_run(run.reader.backend, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("live")
    for name in ("a", "b", "deep/c"):
        made(tmp_path / "runs" / name)
    (tmp_path / "secret.txt").write_text(SECRET)
    made(tmp_path / "elsewhere")
    return tmp_path / "runs"


def client_of(runs: Path, access: Access, base: str = "http://127.0.0.1:8420") -> Any:
    return TestClient(application([runs], access)[0], base_url=base, follow_redirects=False)


@pytest.fixture(scope="module")
def client(runs: Path) -> Any:
    return client_of(runs, Access("127.0.0.1"))


PATHS = ("/", "/data", "/changes")


def test_pages_are_served(client: Any) -> None:
    for query in ("", "?run=a", "?run=deep%2Fc", "?run=a&run=b"):
        answer = client.get(f"/{query}")
        assert answer.status_code == 200, query
        assert "connect-src 'self'" in answer.text
        assert answer.headers["cache-control"] == "no-store"
    assert client.get("/data?run=a").status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "", "localhost@evil"])
def test_a_foreign_host_is_refused(client: Any, path: str, host: str) -> None:
    assert client.get(path, headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8420", "127.0.0.1:9999", "[::1]:8420", "LOCALHOST"])
def test_the_names_of_this_machine_are_accepted(client: Any, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://localhost"])
def test_a_foreign_origin_is_refused(client: Any, path: str, origin: str) -> None:
    assert client.get(path, headers={"origin": origin}).status_code == 403
    assert client.get(path, headers={"origin": "http://127.0.0.1:8420"}).status_code == 200


def test_a_page_of_another_site_may_link_here_and_not_read(client: Any) -> None:
    there = {"sec-fetch-site": "cross-site"}
    assert client.get("/", headers=there | {"sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get("/", headers=there | {"sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(client: Any, method: str) -> None:
    assert client.request(method, "/?run=a").status_code == 405


@pytest.mark.parametrize(
    "name",
    ["../secret.txt", "../elsewhere", "..%2Felsewhere", "a/../../elsewhere", "/etc/passwd", "a/", "./a", "a\x00",
     "deep", "a/run.json", "%2e%2e/elsewhere", "..\\elsewhere", ""],
)  # fmt: skip
@pytest.mark.parametrize("path", [*PATHS, "/events"])
def test_no_name_leads_out_of_the_folder(client: Any, path: str, name: str) -> None:
    answer = client.get(path, params={"run": name})
    assert answer.status_code == 404
    assert SECRET not in answer.text


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/%2e%2e/secret.txt", "/a/run.json", "/static/../../x", "//etc/passwd"]
)
def test_no_path_is_a_file(client: Any, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert SECRET not in answer.text


@pytest.mark.parametrize(
    "query", ["version=x&server=S", "version=1&server=S&panel=1", "version=1&server=S&panel=a:b:c"]
)
def test_a_wrong_question_is_refused(client: Any, runs: Path, query: str) -> None:
    server = unpack(client.get("/data?run=a").content)[0]["live"]["server"]
    assert client.get(f"/changes?run=a&{query.replace('S', server)}").status_code == 400


def test_another_host_needs_a_token() -> None:
    with pytest.raises(ValueError, match="token"):
        Access("0.0.0.0")


def test_the_token_is_asked_for_and_moves_into_a_cookie(runs: Path) -> None:
    client = client_of(runs, Access("0.0.0.0", "right"), "http://10.0.0.7:8420")
    for path in (*PATHS, "/events"):
        assert client.get(path).status_code == 401
        assert client.get(f"{path}?token=wrong").status_code == 401
        assert client.get(path, headers={"cookie": "learnscope=wrong"}).status_code == 401
    moved = client.get("/?run=a&token=right")
    assert moved.status_code == 303
    assert moved.headers["location"] == "/?run=a"
    assert "HttpOnly" in moved.headers["set-cookie"]
    assert "SameSite=Strict" in moved.headers["set-cookie"]
    assert client.get(moved.headers["location"], headers={"cookie": "learnscope=right"}).status_code == 200
    client.cookies.clear()
    assert client.get("/", headers={"authorization": "Bearer right"}).status_code == 200
    assert client.get("/", headers={"host": "evil.example", "authorization": "Bearer right"}).status_code == 403


def test_a_redirect_does_not_lead_to_another_server(runs: Path) -> None:
    client = client_of(runs, Access("127.0.0.1", "right"))
    moved = client.get("//evil.example/?token=right")
    assert not moved.headers.get("location", "/").startswith("//")


def test_nothing_is_written_into_run_folders(client: Any, runs: Path) -> None:
    def state() -> dict[str, str]:
        files = [path for path in runs.rglob("*") if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = state()
    for query in ("", "?run=a", "?run=a&run=b", "?run=deep%2Fc"):
        assert client.get(f"/{query}").status_code == 200
        assert client.get(f"/changes{query}").status_code == 200
    assert state() == before
