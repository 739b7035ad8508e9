"""Many scripted hosts with one controller, as benchmarks/many_hosts.py plays them: it forms, loses one and re-forms."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.real
FILE = Path(__file__).parents[2] / "benchmarks/many_hosts.py"
HOSTS = 60


@pytest.fixture
def many_hosts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the benchmark as a module; it imports one beside it."""
    monkeypatch.syspath_prepend(str(FILE.parent))
    spec = importlib.util.spec_from_file_location("many_hosts", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "many_hosts", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_sixty_hosts_form_lose_one_and_form_again_for_a_few_bytes_each(many_hosts: ModuleType) -> None:
    result = many_hosts.Measurement(HOSTS, 1, idle_s=0.5).run()
    assert result["rejoins"] == 0, "no lease has run out"
    assert [result[name]["bytes_per_host"] < 2000 for name in ("form", "re-form")] == [True, True], json.dumps(result)
    assert result["journal_bytes"] > 10 * HOSTS * 100, "of which each host would have got all"
    assert result["fall silent"]["acks"] > HOSTS
