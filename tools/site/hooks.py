"""What the site's generator does besides: links that lead out of docs/."""

import os
import posixpath
import re

# Where the sources are published, as https://HOST/OWNER/NAME/blob/main/; without it
# such a link is its text alone.
SOURCES = os.environ.get("DOCS_SOURCES", "")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.dirname(page.file.src_uri)

    def replace(match):
        text, target = match.groups()
        path, _, fragment = target.partition("#")
        if "://" in target or not path:
            return match[0]
        at = posixpath.normpath(posixpath.join("docs", folder, path))
        if at == "README.md":
            return f"[{text}]({posixpath.relpath('index.md', folder or '.')})"
        if at == "docs" or at.startswith("docs/"):
            if files.get_file_from_path(at.removeprefix("docs/")) or not os.path.isdir(at):
                return match[0]
        if SOURCES:
            return f"[{text}]({SOURCES}{at}{'#' + fragment if fragment else ''})"
        return text

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    return "".join(p if p.startswith("```") else LINK.sub(replace, p) for p in parts)
