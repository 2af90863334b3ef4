"""The release of this package; Cargo.toml and pyproject.toml carry the same, and a test holds them together."""

VERSION = "0.1.0"
