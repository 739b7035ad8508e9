"""Tests of the mutation bench: it finds mutants, refuses useless ones, and reports survivors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowdist.control import rules
from tests.choosing import slow
from tests.proofs import mutants
from tests.proofs.mutations import MUTANTS, Mutant, MutationError, mutated

PROOF = Path(__file__).parents[2] / "evidence/proof.md"
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
HARMLESS = Mutant(
    "harmless", "R9", "nothing", "rules:matching_rule", "if policy is None:", "if None is policy:", "repeated"
)
TENTH = ["--share", "0.1"]


@pytest.mark.parametrize(
    "name", ["no-fence", "charged-twice", "unpublished", "other-publisher", *slow(["any-attempt"])]
)
def test_a_property_finds_a_mutant(name: str):
    done = mutants.bench(BY_NAME[name], share=0.2)
    assert done.found is not None and done.found.property == BY_NAME[name].first
    assert 1 <= done.found.size <= 12 and done.examples > 0


def test_the_failure_is_the_same_in_every_run():
    first, second = (mutants.bench(BY_NAME["charged-twice"], share=0.2) for _ in range(2))
    assert first.found == second.found and first.examples == second.examples


@pytest.mark.slow
def test_a_mutant_that_changes_no_behaviour_fails_the_bench(capsys: pytest.CaptureFixture[str]):
    assert mutants.main([*TENTH, "--only", "harmless"], [HARMLESS]) == 1
    assert "| harmless | R9   | nothing            | **survives** |" in capsys.readouterr().out


def test_a_failing_unmutated_build_is_reported(capsys: pytest.CaptureFixture[str]):
    with mutated(BY_NAME["charged-twice"]):
        done = mutants.bench_unmutated("repeated", share=0.2)
    assert done.found is not None
    mutants._print([done], [], [], 1.0)
    assert "the unmutated build fails repeated" in capsys.readouterr().out


@pytest.mark.slow
def test_json_has_the_shrunk_case(capsys: pytest.CaptureFixture[str]):
    assert mutants.main([*TENTH, "--only", "no-join-window", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [done["name"] for done in printed["mutants"]] == ["no-join-window"]
    assert printed["mutants"][0]["found"]["case"].startswith("Conversation(graph=RoleGraph(")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_applies_and_is_undone(mutant: Mutant):
    before = rules.matching_rule.__code__, rules.judge_failure.__code__
    with mutated(mutant):
        pass
    assert (rules.matching_rule.__code__, rules.judge_failure.__code__) == before


def test_a_mutant_whose_text_is_not_found_once_is_refused():
    with (
        pytest.raises(MutationError, match=r"'nowhere' stands 0 times in rules:matching_rule"),
        mutated(HARMLESS._replace(old="nowhere")),
    ):
        pass
    with pytest.raises(MutationError, match=r"stands \d times"), mutated(HARMLESS._replace(old="policy")):
        pass
    with (
        pytest.raises(MutationError, match="rules:nothing is no function"),
        mutated(HARMLESS._replace(where="rules:nothing")),
    ):
        pass


def test_a_mutant_that_changes_no_code_is_refused():
    with pytest.raises(MutationError, match="changes nothing"), mutated(HARMLESS._replace(new="if (policy is None):")):
        pass


def test_every_rule_that_control_follows_has_a_mutant_and_names_are_unique():
    assert {f"R{number}" for number in range(1, 25)} <= {mutant.rule for mutant in MUTANTS}
    assert len(BY_NAME) == len(MUTANTS) >= 24


def test_the_table_in_the_documents_names_every_mutant_and_none_survives():
    rows = [line.split("|")[1:3] for line in PROOF.read_text().splitlines() if line.startswith("| ")]
    named = {name.strip(): rule.strip() for name, rule in rows}
    assert {mutant.name: mutant.rule for mutant in MUTANTS}.items() <= named.items()
    assert "**survives**" not in PROOF.read_text().partition("## Mutation bench")[2].partition("\n## ")[0]
