"""Cuts the event files of a run back to where it resumes."""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterator

import tensorflow as tf

# A record: its length (8 bytes), a checksum of that (4), the data, a checksum of those (4).
_HEAD, _TAIL = 12, 4

# Tags against another x axis than the global step.
OTHER_AXIS = "_vs_"


def cut_events(log_dir: str, last_step: int) -> int:
    """Removes what was written after `last_step`, so that a resumed run's x axes grow on.

    TensorBoard would show a stretch that was trained twice as two lines. What lies behind the first scalar above
    `last_step` is removed, whatever it is; values against other axes were written beside it.

    Args:
      log_dir: directory of the event files; those below it are left alone.
      last_step: the global step that the run resumes from.

    Returns:
      the bytes removed.
    """
    removed = 0
    for path in sorted(glob.glob(os.path.join(glob.escape(log_dir), "events.out.tfevents.*")), key=_age, reverse=True):
        first, begun_before = None, False
        for offset, event in _events(path):
            if not event.HasField("summary") or all(OTHER_AXIS in v.tag for v in event.summary.value):
                continue
            if event.step > last_step:
                first = offset
                break
            begun_before |= event.step < last_step
        if first is not None:
            removed += os.path.getsize(path) - first
            os.truncate(path, first)
        # Files are written one after the other: older ones end before this one began. One of `last_step` alone tells
        # nothing of them, as that of an evaluation before the run trains on.
        if begun_before:
            break
    return removed


def _age(path: str) -> tuple[int, float, str]:
    parts = os.path.basename(path).split(".")
    return (int(parts[3]) if len(parts) > 3 and parts[3].isdigit() else 0, os.path.getmtime(path), path)


def _events(path: str) -> Iterator[tuple[int, tf.compat.v1.Event]]:
    """The whole records of an event file with their places; ends at the first damaged one."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        offset = 0
        while True:
            head = file.read(_HEAD)
            if len(head) < _HEAD:
                return
            (length,) = struct.unpack("<Q", head[:8])
            # A damaged length may be any number, and must not decide how much memory is asked for.
            if offset + _HEAD + length + _TAIL > size:
                return
            data = file.read(length)
            if len(data) < length or len(file.read(_TAIL)) < _TAIL:
                return
            try:
                event = tf.compat.v1.Event.FromString(data)
            except Exception:  # protobuf's DecodeError has no public, stable home
                return
            yield offset, event
            offset += _HEAD + length + _TAIL
