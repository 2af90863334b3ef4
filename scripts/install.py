"""Installs the dependencies and extras of pyproject.toml; PIP_CONSTRAINT names constraints.txt."""

import subprocess
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
wanted = project["dependencies"] + [name for extra in extras if extra != "all" for name in extras[extra]]
sys.exit(subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wanted]).returncode)
