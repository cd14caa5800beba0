"""Check the documents: each file and each test they name exists.

A name counts when it stands in backquotes and looks like a path of this tree (`docs/...`, `tests/...::name`,
`scripts/...`, `src/...`) or in a relative Markdown link.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUOTED = re.compile(r"`((?:docs|tests|scripts|src|bench|deploy|agent|\.ci)/[^`\s]*)`")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def missing(document: Path) -> list[str]:
    """Return a line for each thing that `document` names and that is not there."""
    text = document.read_text()
    problems = []
    for name in QUOTED.findall(text):
        path, _, test = name.partition("::")
        if "<" in path or "*" in path:
            continue
        target = ROOT / path
        if not target.exists():
            problems.append(f"{document.relative_to(ROOT)}: {path} does not exist")
        elif test and not re.search(
            rf"^(?:async )?def {re.escape(test)}\(|^func {re.escape(test)}\(", target.read_text(), re.MULTILINE
        ):
            problems.append(f"{document.relative_to(ROOT)}: {path} has no test {test}")
    dead = (name for name in LINK.findall(text) if not (document.parent / name).exists())
    return problems + [f"{document.relative_to(ROOT)}: link to {name} leads nowhere" for name in dead]


def main() -> int:
    """Check README, the top documents and all of docs/; return the exit status."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    problems = [line for document in sorted(documents) for line in missing(document)]
    print("\n".join(problems) or f"{len(documents)} documents, all references found")  # noqa: T201 - a program's output
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
