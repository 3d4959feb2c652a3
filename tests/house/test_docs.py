"""Guards against docs that lead nowhere. What they show is checked by `python docs/regenerate.py --check` in CI."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_links_lead_somewhere() -> None:
    for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
