"""The version, for all parts of the package."""

VERSION = "0.1.0"
