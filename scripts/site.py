"""Builds the documents as a site: build/site/VERSION, `latest` beside it, and the list of versions for the menu.

Nothing is downloaded. A warning (a link or an anchor that leads nowhere, a page outside the menu, a name without a
docstring) is an error. Versions that are there already stay.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    place = ROOT / "build" / "site"
    latest = place / "latest"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(latest)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    sys.path.insert(0, str(ROOT))
    from repertory import __version__ as version

    shutil.rmtree(place / version, ignore_errors=True)
    shutil.copytree(latest, place / version)
    others = sorted({folder.name for folder in place.iterdir() if folder.is_dir()} - {"latest"}, reverse=True)
    listed = [{"version": name, "title": name, "aliases": ["latest"] if name == version else []} for name in others]
    (place / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    (place / "index.html").write_text('<meta http-equiv="refresh" content="0; url=latest/index.html">\n')
    print(f"docs: {latest}. To read them: python -m http.server --directory {place.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
