"""Hooks for `make docs` (see mkdocs.yml): pages outside docs/, inline drawings, no foreign resources."""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE_DOCS = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")  # pages of the site outside docs/

_PICTURE = re.compile(r"^!\[(?P<says>[^\]]*)\]\((?P<file>[^)]+\.svg)\)$", re.MULTILINE)
# Resources that a browser fetches without a click.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|preload)\"?[^>]*\bhref=\"?(?:https?:)?//"
)
_IMPORTED = re.compile(r"url\([\"']?(?:https?:)?//|@import [\"'](?:https?:)?//")


def on_files(files: Any, config: Any) -> Any:
    for name in OUTSIDE_DOCS:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with links to and from pages outside docs/ corrected, and with drawings inline."""
    place = page.file.src_uri
    if place in OUTSIDE_DOCS:
        markdown = markdown.replace("](docs/", "](")
    else:
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./({'|'.join(OUTSIDE_DOCS)})", r"](\1\2", markdown)

    def drawn(found: re.Match[str]) -> str:  # as an HTML block: Markdown leaves its content unchanged
        text = (ROOT / "docs" / place).parent.joinpath(found["file"]).read_text(encoding="utf-8")
        return f'<div class="drawing">{text.strip()}</div>'

    return _PICTURE.sub(drawn, markdown)


def on_post_build(config: Any) -> None:
    """Raise PluginError if a page fetches a resource from another host: the site must work offline."""
    site = Path(config["site_dir"])
    for file in site.rglob("*.*"):
        wrong = {".html": _FETCHED, ".css": _IMPORTED}.get(file.suffix)
        if wrong and (found := wrong.search(file.read_text(encoding="utf-8"))):
            raise PluginError(f"{file.relative_to(site)} would fetch {found[0]!r} from another host")
