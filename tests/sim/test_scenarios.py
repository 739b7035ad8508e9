"""Every scenario of the folder is a test, which fails if an expectation is not met."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.simulate.simulate import command

FOLDER = Path(__file__).parents[2] / "scenarios"
STORIES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_scenario(story: Path) -> None:
    result = CliRunner().invoke(command, [str(story)])
    assert result.exit_code == 0, result.output


def test_every_rule_has_a_story_and_a_test_and_the_page_links_them() -> None:
    page = (FOLDER.parent / "docs/restarts.md").read_text() + (FOLDER.parent / "docs/known_failures.md").read_text()
    tests = "".join(path.read_text() for path in (FOLDER.parent / "tests/control").glob("test_*.py"))
    for rule in range(1, 26):
        assert any(story.name.startswith(f"r{rule}_") for story in STORIES), f"R{rule} has no story"
        assert f"def test_r{rule}_" in tests, f"R{rule} has no test"
        assert f"| R{rule} |" in page
    for story in STORIES:
        assert f"../scenarios/{story.name}" in page, f"neither page links {story.name}"


def test_each_failure_of_torchrun_and_each_of_seven_bug_reports_has_a_story() -> None:
    for number in range(1, 8):
        assert any(story.name.startswith(f"torchrun{number}_") for story in STORIES), f"torchrun {number} has no story"
    assert sum(story.name.startswith("bug_") for story in STORIES) == 7


@pytest.mark.parametrize(
    ("expect", "text"),
    [
        ('outcome = "failed"', "outcome: expected failed, found succeeded"),
        ("restarted = { trainer = 2 }", "restarted: expected trainer = 2, found 1"),
        ("generations = { trainer = 1 }", "generations: expected trainer = 1, found 2"),
        ("world_sizes = { trainer = [4, 4] }", "world_sizes: expected trainer = [4, 4], found [4, 3]"),
        ('lost_work_max = "1s"', "lost_work_max: trainer lost"),
        ('recovered_within = "1s"', "recovered_within: incident 1 recovered after"),
        ('reason_contains = "budget"', "reason: expected 'budget' in"),
        ('members = { trainer = ["0 1"] }', "members: expected trainer = ['0 1'], found ['0 1 2 3', '0 2 3']"),
        ("charged = { trainer = 1 }", "charged: expected trainer = 1, found 0"),
        ('says = ["good morning"]', "says: no notice contains 'good morning'"),
    ],
)
def test_an_expectation_that_is_not_true_is_named(tmp_path: Path, expect: str, text: str) -> None:
    story = tmp_path / "story.toml"
    topology = FOLDER / "topologies/gang.py"
    story.write_text(f'title = "x"\ntopology = "{topology}"\nfaults = ["node1@2m30s"]\n[expect]\n{expect}\n')
    result = CliRunner().invoke(command, [str(story)])
    assert result.exit_code == 3 and text in result.output, result.output


def test_a_fault_that_never_fires_is_a_violated_expectation(tmp_path: Path) -> None:
    story = tmp_path / "story.toml"
    story.write_text(f'title = "x"\ntopology = "{FOLDER / "topologies/gang.py"}"\nfaults = ["node1@9h"]\n')
    result = CliRunner().invoke(command, [str(story)])
    assert result.exit_code == 3 and "fault node1@9h never fired" in result.output


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('title = "x"\ntopologie = "y"', "key 'topologie' is unknown"),
        ('title = "x"\ntopology = "y"\n[expect]\noutcom = "failed"', "key 'expect.outcom' is unknown"),
        ('title = "x"', "there is no topology"),
        ("title = ", "Invalid value"),
    ],
)
def test_a_wrong_scenario_is_refused_with_file_and_key(tmp_path: Path, content: str, text: str) -> None:
    story = tmp_path / "story.toml"
    story.write_text(content)
    result = CliRunner().invoke(command, [str(story)])
    assert result.exit_code == 2 and text in result.output and str(story) in result.output
