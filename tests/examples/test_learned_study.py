"""The study of learned tuners runs to its end, and does nothing twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedhpo_gym.agents.learned_network import STORED

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
import learned_study as study


@pytest.mark.slow
@pytest.mark.usefixtures("few_meta_tasks")
def test_the_smallest_study_fills_a_page_and_knows_another_network(tmp_path: Path) -> None:
    out, page, policies = tmp_path / "out", tmp_path / "page.md", tmp_path / "policies"
    page.write_text("Words.\n<!-- test -->\nold\n<!-- end -->\nMore.\n")
    asked = ["--quick", "--workers", "1", "--out", str(out), "--page", str(page)]
    study.main(asked)
    told = page.read_text()
    assert told.startswith("Words.\n<!-- test -->\n\n**Pools**: 4 runs of each agent")
    assert "| distinct runs | 4 | 2 |" in told  # a list draws nothing: its seeds are one run
    assert "\nold\n" not in told
    assert told.endswith("<!-- end -->\nMore.\n")
    made = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    study.main(asked)
    assert page.read_text() == told
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.json")} == made
    # A card of other words is another network.
    shutil.copytree(STORED, policies)
    card = policies / "learned-transformer-LR.json"
    content = json.loads(card.read_text())
    card.write_text(json.dumps(content | {"card_sha256": "0" * 64}))
    names = study.named("learned-transformer", "LR", str(policies)), study.named("gp", "LR", None)
    assert names == ("learned-transformer-00000000", "gp")
