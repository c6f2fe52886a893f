"""Files that git does not ignore, and lines changed since a reference."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from keras_bandgnn.programs.linting.project_files import (
    Exclude,
    changed_lines,
    list_files,
)


def git(folder, *arguments):
    subprocess.run(
        ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        check=True,
        capture_output=True,
    )


def write(folder, **files):
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(file.name + ".py").write_text(text)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, a="1\n2\n3\n", sub__b="1\n2\n3\n", sub__old="x = 1\n" * 20)
    (folder / ".gitignore").write_text("build/\n*_gen.py\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def names(folder, *paths, exclude=(), force=False):
    paths = [str(folder / path) for path in paths]
    project = list_files(paths, [Exclude(exclude, folder)], force)
    assert not project.errors and not project.remarks
    return [os.path.relpath(name, folder) for _, name in project.files]


def test_ignored_files_are_left_out(repository):
    write(repository, build__c="", sub__x_gen="", new="", build__deep__d="")
    (repository / "book.ipynb").write_text("{}")
    (repository / "text.txt").write_text("")
    os.unlink(repository / "sub" / "b.py")
    found = ["a.py", "book.ipynb", "new.py", "sub/old.py"]
    assert names(repository, "") == found
    assert names(repository, "sub") == ["sub/old.py"]
    assert names(repository, "", exclude=["sub", "a*"]) == ["book.ipynb", "new.py"]
    assert names(repository, "", exclude=["sub/", "./a.py"]) == ["book.ipynb", "new.py"]
    # What is named itself is checked, ignored or not.
    assert names(repository, "sub/x_gen.py") == ["sub/x_gen.py"]
    assert names(repository, "build") == ["build/c.py", "build/deep/d.py"]
    assert names(repository, "a.py", "", "a.py") == found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("src/gen", ["src/a_pb2.py", "tests/gen/c.py"]),
        ("src/gen/", ["src/a_pb2.py", "tests/gen/c.py"]),
        ("gen", ["src/a_pb2.py"]),
        ("*_pb2.py", ["src/gen/b.py", "tests/gen/c.py"]),
        ("src/*.py", ["src/gen/b.py", "tests/gen/c.py"]),
        ("src/**/*.py", ["tests/gen/c.py"]),
        ("gen/b.py", ["src/a_pb2.py", "src/gen/b.py", "tests/gen/c.py"]),
    ],
)
def test_paths_in_patterns_are_relative_to_one_folder(
    pattern, expected, tmp_path, monkeypatch
):
    # Names of folders above do not count.
    folder = tmp_path / "gen"
    write(folder, src__a_pb2="", src__gen__b="", tests__gen__c="")
    for inner in (folder, folder / "src", tmp_path):
        monkeypatch.chdir(inner)
        assert names(folder, "", exclude=[pattern]) == expected
    in_src = [name for name in expected if name.startswith("src/")]
    assert names(folder, "src", exclude=[pattern]) == in_src
    # What is named itself is checked, unless that is not wanted.
    files = ["src/a_pb2.py", "src/gen/b.py", "tests/gen/c.py"]
    assert names(folder, *files, exclude=[pattern]) == files
    assert names(folder, *files, exclude=[pattern], force=True) == expected
    gen = [name for name in expected if "gen" in name]
    assert names(folder, "src/gen", "tests/gen", exclude=[pattern], force=True) == gen


def test_patterns_are_those_of_gitignore(tmp_path):
    write(tmp_path, src__a="", src__gen__b="", src__gen__c="", tests__a="")
    assert names(tmp_path, "", exclude=["/src"]) == ["tests/a.py"]
    assert names(tmp_path, "", exclude=["a.py", "!tests/a.py", "gen"]) == ["tests/a.py"]
    assert names(tmp_path, "", exclude=["src/*", "!src/gen"]) == [
        *("src/gen/b.py", "src/gen/c.py", "tests/a.py")
    ]
    # A folder that is named itself, although a pattern skips it.
    assert names(tmp_path, "src/gen", exclude=["src", "c.py"]) == ["src/gen/b.py"]
    with pytest.raises(ValueError, match="patterns as in .gitignore.*'!'"):
        Exclude(["!"])


def test_of_files_elsewhere_only_the_name_counts(tmp_path):
    write(tmp_path, src__a="", tests__b="")
    exclude = [Exclude(["src", "b.py"], tmp_path / "tests" / "inner")]
    paths = [str(tmp_path / "src" / "a.py"), str(tmp_path / "tests" / "b.py")]
    (listed,) = list_files(paths, exclude, force=True).files
    assert listed[1] == paths[0]


def test_folders_outside_of_a_repository(tmp_path):
    write(tmp_path, a="", b__c="", node_modules__d="", b__venv__e="")
    write(tmp_path / ".hidden", f="")
    assert names(tmp_path, "") == ["a.py", "b/c.py"]
    assert names(tmp_path, ".hidden") == [".hidden/f.py"]
    with pytest.raises(FileNotFoundError, match="Expected files .* that exist"):
        names(tmp_path, "nowhere")


def unreadable(folder, paths, exclude=()):
    """List as a user whom modes of files bind, unlike the super-user."""
    user = os.geteuid()
    if user == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        os.seteuid(65534)
    try:
        project = list_files(paths, [Exclude(exclude)])
    finally:
        os.seteuid(user)
    return [name for _, name in project.files], project.errors


@pytest.fixture
def public():
    """A folder that other users can reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        for path in Path(folder).rglob("*"):
            if path.is_dir():
                path.chmod(0o755)


@pytest.mark.parametrize("tracked", [None, False, True])
def test_folders_that_cannot_be_read_are_errors(tracked, public, monkeypatch):
    monkeypatch.chdir(public)
    write(public, a="", open__shut__b="", open__listed__c="", gone__d="")
    if tracked is not None:
        git(public, "init", "-q")
    if tracked:
        git(public, "add", "."), git(public, "commit", "-qm", "first")
    (public / "open" / "shut").chmod(0)
    # Names can be read, and nothing else.
    (public / "open" / "listed").chmod(0o444)
    (public / "gone").chmod(0)
    paths = (["."], ["a.py", "open"], ["."])
    for chosen, exclude in zip(paths, ([], [], ["gone", "open/shut"]), strict=True):
        files, errors = unreadable(public, chosen, exclude)
        # Files that cannot be read are errors when they are.
        failed = {name for name, _ in errors} | set(files) - {"a.py"}
        failed = {name.removesuffix("/b.py").removesuffix("/d.py") for name in failed}
        expected = {"open/shut", "open/listed/c.py"}
        if exclude:
            expected.remove("open/shut")
        elif chosen == ["."]:
            expected.add("gone")
        assert failed == expected and "a.py" in files
        assert all(reason == "Permission denied" for _, reason in errors)


def test_a_repository_that_git_refuses(repository, monkeypatch):
    write(repository, build__c="")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    project = list_files([str(repository)])
    assert len(project.files) == 4 and not project.errors
    (remark,) = project.remarks
    assert "files that git ignores are checked, too" in remark
    assert "dubious ownership" in remark


def changed(folder, reference, *inner):
    paths = [str(folder / path) for path in inner] or [str(folder)]
    found = changed_lines(paths, reference)
    return {os.path.relpath(file, folder): lines for file, lines in found.items()}


@pytest.mark.parametrize("inner", ["", "sub"])
def test_changed_lines(repository, inner):
    write(repository, a="1\ntwo\n3\n4\n", sub__new="1\n", build__c="1\n")
    os.rename(repository / "sub" / "old.py", repository / "sub" / "näme b.py")
    with open(repository / "sub" / "näme b.py", "a") as file:
        file.write("y = 2\n")
    git(repository, "add", "sub/näme b.py", "sub/old.py")
    os.chmod(repository / "sub" / "b.py", 0o755)
    expected = {"a.py": {2, 4}, "sub/new.py": None, "sub/näme b.py": {21}}
    found = changed(repository, "HEAD", inner)
    assert {name: lines for name, lines in found.items() if lines != set()} == expected


def test_what_others_have_changed_does_not_count(repository):
    git(repository, "checkout", "-q", "-b", "mine")
    write(repository, a="1\n2\n3\nmine\n")
    git(repository, "commit", "-qam", "mine")
    git(repository, "checkout", "-q", "main")
    write(repository, a="other\n2\n3\n", sub__b="other\n")
    git(repository, "commit", "-qam", "other")
    git(repository, "checkout", "-q", "mine")
    assert changed(repository, "main") == {"a.py": {4}}
    assert changed(repository, "HEAD") == {}


def test_deleted_lines_have_no_number(repository):
    write(repository, a="1\n3\n")
    os.unlink(repository / "sub" / "b.py")
    os.unlink(repository / "sub" / "old.py")
    os.symlink("b", repository / "sub" / "old.py")
    assert changed(repository, "HEAD") == {"a.py": set()}


def test_links(repository):
    os.symlink("b.py", repository / "sub" / "link.py")
    os.symlink("nowhere.py", repository / "sub" / "other.py")
    git(repository, "add", "."), git(repository, "commit", "-qm", "links")
    os.unlink(repository / "sub" / "link.py")
    write(repository, sub__link="1\n2\n", sub__b="1\ntwo\n3\n")
    os.symlink("b.py", repository / "sub" / "new.py")
    os.unlink(repository / "sub" / "other.py")
    os.symlink("b.py", repository / "sub" / "other.py")
    # A file in the place of a link is new; a link has the changes of its target.
    expected = {"sub/link.py": None, "sub/b.py": {2}}
    assert changed(repository, "HEAD") == expected
    git(repository, "add", ".")
    assert changed(repository, "HEAD") == expected


def test_every_file_in_its_own_repository(repository, tmp_path, monkeypatch):
    for name in ("inner", "other"):
        inner = repository / name
        inner.mkdir()
        git(inner, "init", "-q", "-b", "main")
        write(inner, c="1\n2\n")
        git(inner, "add", "."), git(inner, "commit", "-qm", "first")
    git(repository, "add", "inner")  # a submodule
    git(repository, "commit", "-qm", "second")
    write(repository, a="1\n2\nthree\n", inner__c="1\ntwo\n", other__c="one\n2\n")
    found = changed(repository, "HEAD", "a.py", "inner/c.py", "sub")
    assert found == {"a.py": {3}, "inner/c.py": {2}, "other": None}
    # As git sets it for hooks.
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    assert changed(repository, "HEAD", "other/c.py") == {"other/c.py": {1}}
    git(repository, "tag", "mine")
    with pytest.raises(ValueError, match="commit of .*inner for --diff"):
        changed(repository, "mine", "a.py", "inner/c.py")
    # A folder of repositories is none.
    write(tmp_path, alone="")
    with pytest.raises(ValueError, match="to be in a git repo.* not a git repository"):
        changed(tmp_path, "HEAD", "repository/a.py", "alone.py")


def test_a_submodule_replaced_by_a_file(repository):
    git(repository, "init", "-q", "-b", "main", "mod.py")
    git(repository / "mod.py", "commit", "-qm", "first", "--allow-empty")
    git(repository, "add", "mod.py"), git(repository, "commit", "-qm", "second")
    shutil.rmtree(repository / "mod.py")
    write(repository, mod="1\n")
    assert changed(repository, "HEAD") == {"mod.py": None}


def test_what_git_cannot_compare(repository):
    shutil.rmtree(repository / ".git" / "objects")
    (repository / ".git" / "objects").mkdir()
    with pytest.raises(ValueError, match="for --diff"):
        changed(repository, "HEAD")


def test_files_without_differences_count_as_a_whole(repository):
    (repository / ".gitattributes").write_text("a.py -diff\nsub/b.py binary\n")
    write(repository, a="1\n", sub__b="Binary files \n2\n3\n")
    found = changed(repository, "HEAD")
    assert found == {"a.py": None, "sub/b.py": None, ".gitattributes": None}
    (repository / ".gitattributes").write_text("")
    assert changed(repository, "HEAD")["sub/b.py"] == {1}


def test_a_hook_in_a_linked_work_tree(repository, tmp_path, monkeypatch):
    git(repository, "worktree", "add", "-q", str(tmp_path / "linked"))
    write(tmp_path / "linked", sub__b="1\ntwo\n3\n", build__c="")
    # As git sets it for hooks.
    monkeypatch.setenv("GIT_DIR", str(repository / ".git" / "worktrees" / "linked"))
    assert changed(tmp_path / "linked", "HEAD", "sub") == {"sub/b.py": {2}}
    assert names(tmp_path / "linked", "sub") == ["sub/b.py", "sub/old.py"]


def test_wrong_references(repository, tmp_path, monkeypatch):
    for reference in ("nowhere", "--output=x", "", "HEAD:a.py"):
        with pytest.raises(ValueError, match="Expected a branch, tag or commit"):
            changed(repository, reference)
    with pytest.raises(ValueError, match="to be in a git repo.* not a git repository"):
        changed(tmp_path, "HEAD")
    with monkeypatch.context() as patch:
        # What git says of a repository of another user, as in a container.
        patch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        with pytest.raises(ValueError, match="dubious ownership"):
            changed(repository, "HEAD")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="git is not installed"):
        changed(repository, "HEAD")
