"""Names and openings of modules: counts that may fall and never rise.

`python tests/support/code_counts.py --places` lists what is counted.
"""

from pathlib import Path

import pytest

from tests.support import code_counts
from tests.support.code_counts import PARTICIPLES, ROOT, VAGUE

LIMITS = {"duplicates": 10, "participles": 79, "vague": 92, "openings": 0}
"""Lower a limit when its count has fallen."""


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    """Return the text of each module of the package."""
    return code_counts.modules()


def test_public_names_stand_in_one_module(texts: dict[Path, str]) -> None:
    duplicates = code_counts.names_in_two_modules(texts)
    assert len(duplicates) <= LIMITS["duplicates"], duplicates


@pytest.mark.parametrize(("banned", "limit"), [(PARTICIPLES, "participles"), (VAGUE, "vague")])
def test_local_names_say_what_they_hold(
    texts: dict[Path, str], banned: frozenset[str], limit: str
) -> None:
    places = code_counts.banned_locals(texts, banned)
    assert len(places) <= LIMITS[limit], "name the value by what it is (CONTRIBUTING.md)"


def test_long_modules_open_with_what_they_do(texts: dict[Path, str]) -> None:
    places = code_counts.short_openings(texts)
    assert len(places) <= LIMITS["openings"], places


def test_what_is_counted() -> None:
    first = (
        '"""One. Two. Three."""\ndef both(kept, *, matches):\n    [found for found in matches]\n'
    )
    second = "class both:\n    asked = 1\n    def _own(self):\n        whole, self.told = 1, 2\n"
    texts = {
        ROOT / "fedhpo_gym" / "a.py": first,
        ROOT / "fedhpo_gym" / "b.py": second + "#\n" * 150,
    }
    assert code_counts.names_in_two_modules(texts) == {
        "both": ["fedhpo_gym/a.py", "fedhpo_gym/b.py"]
    }
    assert code_counts.banned_locals(texts, PARTICIPLES) == [
        "fedhpo_gym/a.py:2 found",
        "fedhpo_gym/a.py:2 kept",
    ]
    assert code_counts.banned_locals(texts, VAGUE) == ["fedhpo_gym/b.py:3 whole"]
    assert code_counts.short_openings(texts) == ["fedhpo_gym/b.py"]
    assert (code_counts.comment_lines(texts), code_counts.total_lines(texts)) == (150, 157)
