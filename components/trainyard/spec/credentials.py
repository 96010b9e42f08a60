"""Recognizes passwords and keys, which must not be written into a recipe, a package or a log."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Words in the name of a variable or option that mark a secret; KEY alone does not.
_NAMES = re.compile(
    r"(?:^|[_.-])(?:SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|TOKEN|CREDENTIALS?|BEARER|APIKEY"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|SIGNING|ENCRYPTION|SHARED|SAS|AUTH)[_.-]?KEY)"
    r"(?:[_.-](?!FILE|PATH|DIR|URL|URI|ENDPOINT|NAME|TYPE|ARN)|$)",
    re.IGNORECASE,
)
# Values that are secrets by their form.
_VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
    r"|\bAIza[\w-]{35}"  # Google
    r"|\bya29\.[\w-]{20}"
    r'|"private_key"'
    r"|\bgh[oprsu]_\w{36}|\bgithub_pat_\w{22}"
    r"|\bhf_[A-Za-z]{34}"
    r"|\bglpat-[\w-]{20}"
    r"|\bxox[abprs]-[\w-]{10}"
    r"|\bsk-[\w-]{32}"
    r"|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."  # JSON Web Token
    r"|\b[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"  # a password in a URL
    r"|(?:^|\s)[^\s/:@]+:[^\s/:@]+@(?!sha256:)"  # and before the name of a registry
    r"|(?:AccountKey|SharedAccessSignature)="  # Azure
    r"|\b[Aa]uthorization['\"]?\s*[:=]\s*\S"
    r"|\b(?:[Bb]earer|[Bb]asic)\s+(?=\S*\d)[\w.~+/-]{8,}"
)
# Values inside a value: options of a program, lines of a file, parameters of a URL.
_PAIRS = re.compile(
    r"(?:(?:^|[\s'\"])--?D?(?P<option>[A-Za-z][\w.-]*)(?:\s*[=:]\s*|\s+)"
    r"|(?:^|[\s,;&?{'\"])(?P<name>[A-Za-z][\w.-]*)['\"]?\s*[=:]\s*)(?!//)(?P<value>[^\s,;&}]+)"
)
# No secrets: a switch, a number, a variable, a path.
_PLAIN = re.compile(
    r"(?:|true|false|yes|no|on|off|none|null|-?[\d.]{1,8}|\$\{?\w+\}?|(?:~|\.{1,2})?/.*)", re.IGNORECASE
)


def is_secret(name: str, value: str) -> bool:
    """Return True if `value`, called `name`, looks like a secret and not like a path, a switch or a number."""
    if _VALUES.search(value):
        return True
    return any(_NAMES.search(key) and not _PLAIN.fullmatch(said) for key, said in [(name, value), *_pairs(value)])


def _pairs(value: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values in `value`: `--name=value`, `--name value`, `name: value`."""
    for match in _PAIRS.finditer(value):
        yield match["option"] or match["name"], match["value"].strip("'\"")
