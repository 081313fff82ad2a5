"""Numbers of a run beside those in the repository."""

import subprocess

import pytest

from califkit.exhibits.recorded import Comparison, compare_with_recorded


@pytest.fixture
def figures(tmp_path, monkeypatch):
    """A repository with two recorded tables, of eight numbers and of one."""
    monkeypatch.setenv("CALIFKIT_ROOT", str(tmp_path))
    folder = tmp_path / "figures" / "small"
    folder.mkdir(parents=True)
    (folder / "fig5_main.csv").write_text("arm,x,y\na,1,2.5\nb,-3,nan\nc,1e-3,\nd,4,5\n,0,\n")
    (folder / "tab1_other.csv").write_text("z\n7\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "recorded"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return folder


def test_the_same_tables_are_equal(figures):
    found = compare_with_recorded("small", ["fig5_main", "tab1_other"])
    assert found == Comparison(9, 9, ())
    assert found.in_words("small") == "9 of 9 numbers equal the recorded ones"


def test_other_numbers_are_counted_and_their_table_named(figures):
    text = (figures / "fig5_main.csv").read_text()
    (figures / "fig5_main.csv").write_text(text.replace("2.5", "2.6").replace("4,5", "4.000001,5"))
    found = compare_with_recorded("small", ["fig5_main", "tab1_other"])
    assert found == Comparison(8, 9, ("fig5_main",)), "a millionth is rounding"
    assert found.in_words("small") == (
        "8 of 9 numbers equal the recorded ones; others in fig5_main"
    )


def test_a_table_that_is_gone_or_has_another_shape_has_no_equal_numbers(figures):
    (figures / "tab1_other.csv").unlink()
    assert compare_with_recorded("small", ["fig5_main", "tab1_other"]).equal == 8
    (figures / "fig5_main.csv").write_text("arm,x\na,1\n")
    assert compare_with_recorded("small", ["fig5_main", "tab1_other"]).equal == 0


def test_only_tables_of_the_notebooks_that_ran_are_compared(figures):
    assert compare_with_recorded("small", ["tab1_other"]) == Comparison(1, 1, ())


def test_where_nothing_is_recorded_nothing_is_compared(figures):
    found = compare_with_recorded("cpu", ["fig5_main"])
    assert found.in_words("cpu") == (
        "no numbers of the profile cpu are recorded, so none were compared"
    )
