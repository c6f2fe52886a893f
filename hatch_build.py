"""Metadata of the package that depend on where the project is published.

REPOSITORY_URL and SITE_URL are the addresses of the repository and of the pages, as in
mkdocs.yml. Whoever releases sets them. The README of the package then links to the
files of this version, since package indexes do not resolve relative links.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


def absolute_links(text: str, address: str) -> str:
    """Return Markdown whose relative links lead below an address."""
    return re.sub(r"\]\((?!https?:|mailto:|#)", f"]({address}/", text)


def urls(repository: str, site: str) -> dict[str, str]:
    """Return the addresses that package indexes show."""
    addresses = {"Documentation": site} if site else {}
    if repository:
        addresses |= {
            "Repository": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        }
    return addresses


class CustomMetadataHook(MetadataHookInterface):
    """Sets the README and the addresses."""

    def update(self, metadata: dict) -> None:
        """Add `readme` and `urls` to the metadata of pyproject.toml."""
        repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        text = Path(self.root, "README.md").read_text("utf-8")
        if repository:
            text = absolute_links(text, f"{repository}/blob/v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository, os.environ.get("SITE_URL", ""))
