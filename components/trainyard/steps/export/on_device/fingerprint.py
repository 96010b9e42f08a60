"""FarmHash's Fingerprint64, by which strings out of vocabulary get their ids."""

from __future__ import annotations

# Source: https://github.com/google/farmhash, src/farmhash.cc, namespace farmhashna.
_K0, _K1, _K2, _64_BITS = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, (1 << 64) - 1


def fingerprint64(text: bytes) -> int:
    """Return the fingerprint of `text`, unsigned."""
    size = len(text)
    if size <= 16:
        return _hash_to_16(text)
    if size <= 32:
        return _hash_to_32(text)
    return _hash_to_64(text) if size <= 64 else _hash_long(text)


def _hash_to_16(text: bytes) -> int:
    size, factor = len(text), _K2 + 2 * len(text)
    if size >= 8:
        a, b = _integer(text, 0) + _K2 & _64_BITS, _integer(text, size - 8)
        return _mix(_rotate(b, 37) * factor + a, (_rotate(a, 25) + b) * factor, factor)
    if size >= 4:
        return _mix(size + (_integer(text, 0, 4) << 3), _integer(text, size - 4, 4), factor)
    if not size:
        return _K2
    y, z = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
    return _shift(y * _K2 & _64_BITS ^ z * _K0 & _64_BITS) * _K2 & _64_BITS


def _hash_to_32(text: bytes) -> int:
    size, factor = len(text), _K2 + 2 * len(text)
    a, b = _integer(text, 0) * _K1 & _64_BITS, _integer(text, 8)
    c, d = _integer(text, size - 8) * factor & _64_BITS, _integer(text, size - 16) * _K2
    return _mix(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, factor)


def _hash_to_64(text: bytes) -> int:
    size, factor = len(text), _K2 + 2 * len(text)
    a, b = _integer(text, 0) * _K2 & _64_BITS, _integer(text, 8)
    c, d = _integer(text, size - 8) * factor & _64_BITS, _integer(text, size - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d & _64_BITS
    z = _mix(y, a + _rotate(b + _K2, 18) + c, factor)
    e, f = _integer(text, 16) * factor & _64_BITS, _integer(text, 24)
    g, h = (y + _integer(text, size - 32)) * factor & _64_BITS, (z + _integer(text, size - 24)) * factor
    return _mix(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, factor)


def _hash_long(text: bytes) -> int:
    seed = 81
    x, y = seed, seed * _K1 + 113 & _64_BITS
    z = _shift(y * _K2 + 113 & _64_BITS) * _K2 & _64_BITS
    v, w = (0, 0), (0, 0)
    x = x * _K2 + _integer(text, 0) & _64_BITS
    end, last = (len(text) - 1) // 64 * 64, len(text) - 64
    for at in range(0, end, 64):
        x = _rotate(x + y + v[0] + _integer(text, at + 8), 37) * _K1 & _64_BITS
        y = _rotate(y + v[1] + _integer(text, at + 48), 42) * _K1 & _64_BITS
        x ^= w[1]
        y = y + v[0] + _integer(text, at + 40) & _64_BITS
        z = _rotate(z + w[0], 33) * _K1 & _64_BITS
        v = _weak(text, at, v[1] * _K1, x + w[0])
        w = _weak(text, at + 32, z + w[1], y + _integer(text, at + 16))
        z, x = x, z
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + ((len(text) - 1) & 63) & _64_BITS, w[1])
    v = (v[0] + w[0] & _64_BITS, v[1])
    w = (w[0] + v[0] & _64_BITS, w[1])
    x = _rotate(x + y + v[0] + _integer(text, last + 8), 37) * factor & _64_BITS
    y = _rotate(y + v[1] + _integer(text, last + 48), 42) * factor & _64_BITS
    x ^= w[1] * 9 & _64_BITS
    y = y + v[0] * 9 + _integer(text, last + 40) & _64_BITS
    z = _rotate(z + w[0], 33) * factor & _64_BITS
    v = _weak(text, last, v[1] * factor, x + w[0])
    w = _weak(text, last + 32, z + w[1], y + _integer(text, last + 16))
    z, x = x, z
    return _mix(_mix(v[0], w[0], factor) + _shift(y) * _K0 + z, _mix(v[1], w[1], factor) + x, factor)


def _weak(text: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_integer(text, at + place) for place in (0, 8, 16, 24))
    a = a + w & _64_BITS
    b = _rotate(b + a + z, 21)
    c = a
    a = a + x + y & _64_BITS
    return a + z & _64_BITS, b + _rotate(a, 44) + c & _64_BITS


def _mix(u: int, v: int, factor: int) -> int:
    v &= _64_BITS
    a = _shift((u ^ v) * factor & _64_BITS)
    return _shift((v ^ a) * factor & _64_BITS) * factor & _64_BITS


def _shift(value: int) -> int:
    return value ^ value >> 47


def _rotate(value: int, by: int) -> int:
    value &= _64_BITS
    return (value >> by | value << 64 - by) & _64_BITS


def _integer(text: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(text[at : at + size], "little")
