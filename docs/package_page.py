"""The page on a package index, made of the README: its files and pictures are not there."""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE: Final = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
LINK: Final = re.compile(r"\[([^]]*)\]\((?!https?:)[^)]*\)")


class PackagePage(MetadataHookInterface):
    """Leaves out pictures and links to files of the repository; hatchling calls it for each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(r"`\1`", PICTURE.sub("", text))}
