"""What `make docs` does beside what mkdocs does by itself: see hooks in mkdocs.yml."""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
BESIDE = ("ARCHITECTURE.md", "CHANGELOG.md")  # pages of the site that are beside docs/, not in it

_TOPICS = re.compile(r"<!-- berth topology --markdown -->\n(.*?)<!-- end of berth topology -->", re.DOTALL)
_PICTURE = re.compile(r"^!\[(?P<says>[^\]]*)\]\((?P<file>[^)]+\.svg)\)$", re.MULTILINE)
# What a browser would fetch by itself.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|preload)\"?[^>]*\bhref=\"?(?:https?:)?//"
)
_IMPORTED = re.compile(r"url\([\"']?(?:https?:)?//|@import [\"'](?:https?:)?//")


def on_files(files: Any, config: Any) -> Any:
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links in and out of docs/ lead to pages of the site; drawings take its colours; topics are there."""
    place = page.file.src_uri
    if place in BESIDE:
        markdown = markdown.replace("](docs/", "](")
    else:
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./({'|'.join(BESIDE)})", r"](\1\2", markdown)

    if "<!-- the table of topics -->" in markdown:
        (table,) = _TOPICS.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
        markdown = markdown.replace("<!-- the table of topics -->", table)

    def drawn(found: re.Match[str]) -> str:
        text = (ROOT / "docs" / place).parent.joinpath(found["file"]).read_text(encoding="utf-8")
        return f'<div class="drawing">{text.strip()}</div>'  # as a block, whose inside is left as it is

    return _PICTURE.sub(drawn, markdown)


def on_post_build(config: Any) -> None:
    """A page that fetches something from another host is an error: it is read where there is no internet."""
    site = Path(config["site_dir"])
    for file in site.rglob("*.*"):
        wrong = {".html": _FETCHED, ".css": _IMPORTED}.get(file.suffix)
        if wrong and (found := wrong.search(file.read_text(encoding="utf-8"))):
            raise PluginError(f"{file.relative_to(site)} would fetch {found[0]!r} from another host")
