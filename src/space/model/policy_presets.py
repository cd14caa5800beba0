"""Policies with a name. `none`: nothing leaves. `packages`: the public package registries, to read from.
`open`: the public internet by name; what no policy may reach stays unreachable.
"""

from collections.abc import Mapping

_READ = ["GET", "HEAD"]
_REGISTRIES_TLS = (
    # Python, also as conda
    "pypi.org", "files.pythonhosted.org", "conda.anaconda.org", "repo.anaconda.com",
    # JavaScript
    "registry.npmjs.org", "registry.yarnpkg.com",
    # Rust, Go, Ruby, PHP, Elixir
    "crates.io", "index.crates.io", "static.crates.io", "proxy.golang.org", "sum.golang.org", "rubygems.org",
    "index.rubygems.org", "repo.packagist.org", "repo.hex.pm",
    # Java
    "repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org",
)  # fmt: skip
_REGISTRIES_EITHER = (
    # distributions, whose package managers check signatures themselves and use plain HTTP by default
    "deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "dl-cdn.alpinelinux.org",
)  # fmt: skip

PRESETS: Mapping[str, Mapping[str, object]] = {
    "none": {"default": "deny"},
    "packages": {
        "default": "deny",
        "allow": [
            *({"host": host, "methods": _READ} for host in _REGISTRIES_TLS),
            *({"host": host, "protocols": ["https", "http"], "methods": _READ} for host in _REGISTRIES_EITHER),
        ],
    },
    "open": {"default": "allow"},
}
