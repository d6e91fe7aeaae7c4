"""Hooks for `make docs` (see mkdocs.yml): pages outside docs/, inline drawings, no foreign resources."""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE_DOCS = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "features/*/*.md")

_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+\.md)(?=[#)])")
_PICTURE = re.compile(r"^!\[(?P<says>[^\]]*)\]\((?P<file>[^)]+\.svg)\)$", re.MULTILINE)
# Resources that a browser fetches without a click.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|preload)\"?[^>]*\bhref=\"?(?:https?:)?//"
)
_IMPORTED = re.compile(r"url\([\"']?(?:https?:)?//|@import [\"'](?:https?:)?//")


def on_files(files: Any, config: Any) -> Any:
    for page in (page for pattern in OUTSIDE_DOCS for page in sorted(ROOT.glob(pattern))):
        place = page.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with its links relative to its place in the site, and with drawings inline."""
    place = page.file.src_uri
    source = Path(page.file.abs_src_path)

    def relinked(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / found["target"])).relative_to(ROOT)
        inside = target.relative_to("docs") if target.parts[0] == "docs" else target
        return posixpath.relpath(inside.as_posix(), posixpath.dirname(place) or ".")

    def drawn(found: re.Match[str]) -> str:  # as an HTML block: Markdown leaves its content unchanged
        text = source.parent.joinpath(found["file"]).read_text(encoding="utf-8")
        return f'<div class="drawing">{text.strip()}</div>'

    return _PICTURE.sub(drawn, _LINK.sub(relinked, markdown))


def on_post_build(config: Any) -> None:
    """Raise PluginError if a page fetches a resource from another host: the site must work offline."""
    site = Path(config["site_dir"])
    for file in site.rglob("*.*"):
        wrong = {".html": _FETCHED, ".css": _IMPORTED}.get(file.suffix)
        if wrong and (found := wrong.search(file.read_text(encoding="utf-8"))):
            raise PluginError(f"{file.relative_to(site)} would fetch {found[0]!r} from another host")
