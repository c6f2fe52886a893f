"""Files of the repository that services read: workflows, templates, metadata."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import keras_bandgnn as kb

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
FILES = [(schema, path) for schema, paths in SCHEMAS.items() for path in paths]


@pytest.fixture(scope="module")
def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("schema", "path"), FILES, ids=lambda value: getattr(value, "name", None)
)
def test_files_have_the_form_that_their_services_read(schema, path, capsys):
    cli = pytest.importorskip("check_jsonschema")
    with pytest.raises(SystemExit) as end:
        cli.main(["--builtin-schema", f"vendor.{schema}", str(path)])
    assert not end.value.code, capsys.readouterr().out


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_files_of_the_repository_with_few_rights(path):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"], name
        for step in job["steps"]:
            for script in re.findall(r"python (\S+\.py)", step.get("run", "")):
                assert (ROOT / script).is_file(), script


def test_the_workflow_of_the_matrix_has_all_environments():
    yaml = pytest.importorskip("yaml")
    script = ROOT / "tests" / "matrix.py"
    text = (GITHUB / "workflows" / "matrix.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]["matrix"]["strategy"]["matrix"]["include"]
    listed = subprocess.run(
        [sys.executable, str(script), "--list"], capture_output=True, text=True
    )
    names = [line.partition(":")[0] for line in listed.stdout.splitlines()]
    assert [job["environment"] for job in jobs] == names


def test_only_the_job_that_publishes_gets_an_identity():
    yaml = pytest.importorskip("yaml")
    text = (GITHUB / "workflows" / "release.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    rights = {name: job.get("permissions") for name, job in jobs.items()}
    assert rights == {"build": None, "tests": None, "publish": {"id-token": "write"}}
    assert "password" not in text and "secrets" not in text
    assert set(jobs["publish"]["needs"]) == {"build", "tests"}


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (version,) = re.findall(r"^version: (.*)$", text, re.M)
    (date,) = re.findall(r'^date-released: "(.*)"$', text, re.M)
    assert version == kb.__version__
    assert f"## [{version}] - {date}" in changelog


@pytest.fixture(scope="module")
def hatch_build():
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location(
        "hatch_build", ROOT / "hatch_build.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata(hatch_build, monkeypatch, **environment):
    for name in ("REPOSITORY_URL", "SITE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    values = {"version": "1.2.3"}
    hatch_build.CustomMetadataHook(str(ROOT), {}).update(values)
    return values


def test_links_of_a_published_readme_are_absolute(hatch_build, monkeypatch):
    address = "https://example.org/owner/name"
    values = metadata(hatch_build, monkeypatch, REPOSITORY_URL=f"{address}/")
    targets = re.findall(r"\]\(([^)]*)\)", values["readme"]["text"])
    assert len(targets) > 20
    assert all(target.startswith("https://") for target in targets), targets
    files = [t.removeprefix(f"{address}/blob/v1.2.3/") for t in targets]
    files = [file.partition("#")[0] for file in files if "://" not in file]
    assert "docs/large-graphs.md" in files
    assert all((ROOT / file).is_file() for file in files)
    assert "Documentation" not in values["urls"]
    assert values["urls"]["Issues"] == f"{address}/issues"


def test_without_an_address_none_is_invented(hatch_build, monkeypatch):
    values = metadata(hatch_build, monkeypatch)
    assert values["urls"] == {}
    assert values["readme"]["text"] == (ROOT / "README.md").read_text("utf-8")
    values = metadata(hatch_build, monkeypatch, SITE_URL="https://example.org")
    assert values["urls"] == {"Documentation": "https://example.org"}


def test_coverage_has_a_floor(pyproject):
    coverage = pyproject["tool"]["coverage"]
    assert coverage["run"]["source"] == ["keras_bandgnn"]
    assert coverage["report"]["fail_under"] > 50


def test_the_site_shows_the_changelog(monkeypatch):
    pytest.importorskip("mkdocs")
    pytest.importorskip("nbclient")
    pytest.importorskip("latex2mathml")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hooks", hooks)
    spec.loader.exec_module(hooks)
    text = hooks.changelog(ROOT)
    assert "## [Unreleased]" in text and "--8<--" not in text
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / "docs" / target).is_file(), target
