"""What can happen to a file, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def damage(draw, content: bytes) -> bytes:
    """`content` cut off, or with some bits flipped, or with a stretch of zeros, of garbage, or none at all."""
    if not content:
        return content
    kind = draw(st.sampled_from(["cut", "flip", "zeros", "garbage", "gap", "more"]))
    at = draw(st.integers(0, len(content) - 1))
    end = min(len(content), at + draw(st.integers(1, 600)))
    if kind == "cut":
        return content[:at]
    if kind == "zeros":
        return content[:at] + bytes(end - at) + content[end:]
    if kind == "garbage":
        return content[:at] + draw(st.binary(min_size=1, max_size=30)) + content[at:]
    if kind == "gap":
        return content[:at] + content[end:]
    if kind == "more":
        return content + draw(st.binary(min_size=1, max_size=30))
    changed = bytearray(content)
    for bit in draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=4, unique=True)):
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
