"""Files that git does not ignore, and lines changed since a reference."""

import os
import subprocess

import pytest

from keras_bandgnn.linting.project_files import changed_lines, list_files


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


def names(folder, *paths, exclude=()):
    paths = [str(folder / path) for path in paths]
    return [os.path.relpath(name, folder) for _, name in list_files(paths, exclude)]


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


def test_folders_outside_of_a_repository(tmp_path):
    write(tmp_path, a="", b__c="", node_modules__d="", b__venv__e="")
    write(tmp_path / ".hidden", f="")
    assert names(tmp_path, "") == ["a.py", "b/c.py"]
    assert names(tmp_path, ".hidden") == [".hidden/f.py"]
    with pytest.raises(FileNotFoundError, match="Expected files .* that exist"):
        names(tmp_path, "nowhere")


def changed(folder, reference, inner=""):
    found = changed_lines(str(folder / inner), reference)
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
            changed_lines(str(repository), reference)
    with pytest.raises(ValueError, match="to be in a git repo.* not a git repository"):
        changed_lines(str(tmp_path), "HEAD")
    with monkeypatch.context() as patch:
        # What git says of a repository of another user, as in a container.
        patch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        with pytest.raises(ValueError, match="dubious ownership"):
            changed_lines(str(repository), "HEAD")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="git is not installed"):
        changed_lines(str(repository), "HEAD")
