"""The Git commit of a project, as Git itself names it."""

import subprocess

import pytest

from gridmill.sdk.project import commit_of

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")


def git(folder, *words):
    done = subprocess.run(["git", *AUTHOR, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "pipelines").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "pipelines" / "p.yaml").write_text("pipeline: p\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_it_is_the_commit_that_is_checked_out_above_the_folder(project):
    assert commit_of(project / "pipelines") == git(project, "rev-parse", "HEAD")
    (project / "more").write_text("edited")
    assert commit_of(project) == git(project, "rev-parse", "HEAD"), (
        "edits are in the bundle, not in the commit"
    )


def test_it_is_found_in_packed_references_in_a_worktree_and_without_a_branch(project, tmp_path):
    head = git(project, "rev-parse", "HEAD")
    git(project, "pack-refs", "--all")
    assert commit_of(project) == head
    git(project, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "other")
    assert commit_of(tmp_path / "other") == head
    git(project, "checkout", "-q", "--detach")
    assert commit_of(project) == head


def test_a_folder_without_a_commit_has_none(tmp_path):
    assert commit_of(tmp_path) == ""
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) == ""
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert commit_of(tmp_path) == ""
