"""Shows text that comes from data: characters that act on a terminal, or that nobody sees, become escapes.

They are written as in JSON (`\\n`, `\\u001b`), so that a JSON text stays one. A text that is escaped twice is the same.
"""

from __future__ import annotations

import shlex
import unicodedata

# Controls, what is invisible or turns the direction of a text, halves of a character, and ends of a line or paragraph.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # Persian, Indic scripts and emoji need them
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def one_line(text: object) -> str:
    r"""Return `text` for a line of a message, comment, log or table.

    >>> print(one_line("id\nmodule: \x1b[31mevil.py"))
    id\nmodule: \u001b[31mevil.py
    """
    return _escaped(str(text), "")


def lines(text: str) -> str:
    """Return `text` for a terminal or a page: its line breaks and tabs stay."""
    return _escaped(text, "\n\t")


def shell(word: str) -> str:
    r"""Return `word` for a command that a person copies.

    >>> print(shell("my data.csv"), shell("a\x1b'b"))
    'my data.csv' $'a\x1b\'b'
    """
    if is_safe(word):
        return shlex.quote(word)
    return "$'" + "".join(map(_shell_letter, word)) + "'"


def shown(value: object) -> object:
    """Return `value` as a page shows it: `finalize` of a Jinja environment, which escapes HTML itself."""
    return lines(value) if type(value) is str else value  # what is HTML already is a class of its own


def is_safe(text: str, kept: str = "") -> bool:
    """Return True if all characters of `text` may be printed as they are; those in `kept` always may."""
    return text.isprintable() or not any(_is_unsafe(letter, kept) for letter in text)


def _escaped(text: str, kept: str) -> str:
    if is_safe(text, kept):
        return text
    return "".join(_escape(letter) if _is_unsafe(letter, kept) else letter for letter in text)


def _is_unsafe(letter: str, kept: str) -> bool:
    return unicodedata.category(letter) in _UNSAFE and letter not in _JOINERS and letter not in kept


def _shell_letter(letter: str) -> str:
    if not _is_unsafe(letter, ""):
        return f"\\{letter}" if letter in "\\'" else letter
    is_byte = "\udc80" <= letter <= "\udcff"  # of a file name that is no UTF-8, as os.fsdecode has it
    return "".join(
        f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    )


def _escape(letter: str) -> str:
    if letter in _SHORT:
        return _SHORT[letter]
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))
