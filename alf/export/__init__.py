"""Policies as models that run without `alf`."""

from alf.export.exporter import PolicyExporter as PolicyExporter
from alf.export.exporter import export_policy as export_policy
from alf.export.exporter import usage_of as usage_of
from alf.export.onnx_model import check_onnx as check_onnx
from alf.export.policy import ExportablePolicy as ExportablePolicy
from alf.export.policy import ExportError as ExportError
