"""Writes TensorBoard event files, one record a call.

A call of `tf.summary.scalar` costs a tenth of a millisecond and more, for each value, and the first one imports
TensorBoard. The learner's thread has better things to do: here all values of a moment go into one record.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging

from alf.metrics.histogram import Histogram

_FILE_VERSION = "brain.Event:2"
_numbers = itertools.count()


class SummaryWriter:
    """One event file under a directory, created at the first write; for one thread at a time.

    What a full disk keeps from being written is missing, which is logged; a later write goes into a new file.
    """

    def __init__(self, log_dir: str) -> None:
        """Creates the writer.

        Args:
          log_dir: directory of the file; created when needed.
        """
        self._log_dir = log_dir
        self._path = ""
        self._writer: tf.io.TFRecordWriter | None = None

    @property
    def log_dir(self) -> str:
        """Where the events go."""
        return self._log_dir

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes numbers by their tags; not flushed."""
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=float(value))
        self._write(step=int(step), summary=summary)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Writes a text, shown by TensorBoard as Markdown; not flushed."""
        metadata = tf.compat.v1.SummaryMetadata()
        metadata.plugin_data.plugin_name = "text"
        summary = tf.compat.v1.Summary()
        tensor = tf.make_tensor_proto([markdown], dtype=tf.string)
        summary.value.add(tag=tag, tensor=tensor, metadata=metadata)
        self._write(step=int(step), summary=summary)

    def histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        """Writes a distribution; not flushed."""
        summary = tf.compat.v1.Summary()
        summary.value.add(tag=tag, histo=histogram.proto())
        self._write(step=int(step), summary=summary)

    def image(self, tag: str, encoded: bytes, height: int, width: int, step: int) -> None:
        """Writes a picture; not flushed.

        Args:
          tag: of the picture.
          encoded: PNG, or a GIF, which TensorBoard shows moving.
          height: in pixels.
          width: in pixels.
          step: the x value.
        """
        summary = tf.compat.v1.Summary()
        picture = summary.value.add(tag=tag).image
        picture.height, picture.width, picture.colorspace, picture.encoded_image_string = height, width, 3, encoded
        self._write(step=int(step), summary=summary)

    def hparams(self, values: Mapping[str, bool | int | float | str], group: str, step: int) -> None:
        """Writes the settings of a run for TensorBoard's HPARAMS page; not flushed.

        Args:
          values: by name.
          group: runs of one group are repeats of the same settings.
          step: the x value.
        """
        # They are small files of protocol buffers; the plugin's own functions would import Keras.
        from tensorboard.plugins.hparams import plugin_data_pb2

        info = plugin_data_pb2.SessionStartInfo(group_name=group, start_time_secs=time.time())
        for name, value in values.items():
            if isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif isinstance(value, (int, float)):
                info.hparams[name].number_value = value
            else:
                info.hparams[name].string_value = value
        metadata = tf.compat.v1.SummaryMetadata()
        metadata.plugin_data.plugin_name = "hparams"
        metadata.plugin_data.content = plugin_data_pb2.HParamsPluginData(session_start_info=info).SerializeToString()
        summary = tf.compat.v1.Summary()
        nothing = tf.make_tensor_proto([], dtype=tf.float32)
        summary.value.add(tag="_hparams_/session_start_info", metadata=metadata, tensor=nothing)
        self._write(step=int(step), summary=summary)

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        with self._bearing():
            if self._writer is not None:
                self._writer.flush()

    def close(self) -> None:
        """Flushes and closes the file; a later write opens a new one."""
        with self._bearing():
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    def _write(self, step: int, summary: tf.compat.v1.Summary) -> None:
        event = tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary)
        with self._bearing():
            if self._writer is None:
                self._writer = self._open()
            self._writer.write(event.SerializeToString())

    @contextlib.contextmanager
    def _bearing(self) -> Iterator[None]:
        """Around what a full disk may refuse. The file may end in half a record then, so nothing more goes into it."""
        try:
            yield
        except (OSError, tf.errors.OpError) as e:
            logging.log_every_n_seconds(
                logging.WARNING, "Events cannot be written and are missing in %s: %s", 60, self._log_dir, e
            )
            self._writer = None
            with contextlib.suppress(OSError):
                if not os.path.getsize(self._path):
                    os.remove(self._path)

    def _open(self) -> tf.io.TFRecordWriter:
        os.makedirs(self._log_dir, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.v2"
        self._path = os.path.join(self._log_dir, name)
        writer = tf.io.TFRecordWriter(self._path)
        writer.write(tf.compat.v1.Event(wall_time=time.time(), file_version=_FILE_VERSION).SerializeToString())
        return writer
